"""The evaluated rows, labelled and in order of time, each with its session and where the open sits."""

from dataclasses import dataclass, replace

import numpy as np

from vpoc.arrays import Floats, Floats32, Ints
from vpoc.evaluation.open_place import open_places
from vpoc.features.feature_set import FeatureSet
from vpoc.training.inputs.samples import Samples, labelled, require_horizon


@dataclass(frozen=True)
class LabelledRows:
    """Rows that have a label, in order of time.

    `inputs` [rows, features]: as those of samples, unscaled.
    `places` [rows]: where the open sits, index into open_place.PLACES.
    `labels` [rows]: 0 or 1.
    `weights` [rows]: uniqueness of the label.
    `sessions` [rows]: number of the row's session, from 0, never decreasing.
    `dates` [sessions]: trade dates, days since 1970.
    `reach`: the number of sessions beyond its own that a label looks at.
    """

    inputs: Floats32
    places: Ints
    labels: Floats
    weights: Floats
    sessions: Ints
    dates: Ints
    reach: int

    def __len__(self) -> int:
        return len(self.labels)

    def span(self, start: int, stop: int) -> slice:
        """Return the rows of sessions [start, stop)."""
        first, last = np.searchsorted(self.sessions, [start, stop])
        return slice(int(first), int(last))

    def head(self, sessions: int) -> "LabelledRows":
        """Return the rows of the first `sessions` sessions."""
        part = self.span(0, sessions)
        names = ("inputs", "places", "labels", "weights", "sessions")
        return replace(self, **{name: getattr(self, name)[part] for name in names}, dates=self.dates[:sessions])

    def with_labels(self, labels: Floats, weights: Floats) -> "LabelledRows":
        """Return the same rows with other labels."""
        return replace(self, labels=labels, weights=weights)


def rows_of(features: FeatureSet, target: str, window: int = 1) -> tuple[LabelledRows, Samples]:
    """Return the rows of `features` that have a value of `target` and `window - 1` rows before them, also as samples.

    Both are unscaled. UserError when the bars are too long for any label.
    """
    require_horizon(features, target)
    samples = labelled(features.frame, target, window)
    dates, sessions = np.unique(samples.dates, return_inverse=True)
    rows = LabelledRows(
        inputs=samples.inputs[samples.ends],
        places=open_places(features)[samples.ends],
        labels=samples.labels.astype(np.float64),
        weights=samples.weights.astype(np.float64),
        sessions=sessions.astype(np.int64),
        dates=dates.astype(np.int64),
        reach=1 if features.options.rows == "session" else 0,
    )
    return rows, samples
