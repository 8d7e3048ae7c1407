"""Turns feature rows into samples: the network's inputs, split by session in order of time."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats32, Ints
from vpoc.data.exchange.sessions import RTH_MINUTES
from vpoc.errors import UserError
from vpoc.features.table import BY_RANGE, NAMES
from vpoc.features.targets import HORIZON
from vpoc.training.inputs.scaling import Scaling, fit_scaling

if TYPE_CHECKING:
    import polars as pl

    from vpoc.features.feature_set import FeatureSet

VALIDATION_SHARE = 0.2
MIN_LABELLED = 3
"""Fewest sessions: one to train, one that may be purged, one to validate. The same holds for choosing the epoch."""

PART = 1 << 16
"""Samples read at a time; even if each were on a page of its own, they would take only 256 MB."""

Dates = npt.NDArray[np.int32]
"""Days since 1970."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels in order of time; every array is [samples].

    `ends`: the row at which a sample's window ends. `labels`, `weights`, float32: 0 or 1, and how much a label tells
    that others do not. `dates`: trade date, days since 1970.
    """

    ends: Ints
    labels: Floats32
    weights: Floats32
    dates: Dates


@dataclass(frozen=True, kw_only=True)
class Samples(Labels):
    """Labels with the rows they are of.

    `inputs` [rows, features]: rows, also those that only serve as history; float32. A sample is `window` of them.
    """

    inputs: Floats32
    window: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sessions(self) -> int:
        """How many sessions the samples come from."""
        return len(set[int]().union(*(np.unique(part.dates).tolist() for part in self.parts())))

    @property
    def weight_sum(self) -> float:
        """Sum of the weights."""
        return sum(float(part.weights.sum(dtype=np.float64)) for part in self.parts())

    @property
    def mean_weight(self) -> float:
        """Mean of the weights; dividing each sample's loss by it makes weights 1 on average over all."""
        return self.weight_sum / len(self)

    @property
    def share_of_ones(self) -> float:
        """Share of the labels that are 1, weighted."""
        ones = sum(float((part.labels * part.weights.astype(np.float64)).sum()) for part in self.parts())
        return ones / self.weight_sum

    def parts(self) -> Iterator["Samples"]:
        """Yield all samples, PART at a time; for mapped files, the memory of the parts is released again."""
        for start in range(0, len(self), PART):
            yield self.take(slice(start, start + PART))
            self.forget_pages()

    def forget_pages(self) -> None:
        """Release the memory of mapped files' pages; the system reads them again when they are needed."""
        for values in (self.inputs, self.ends, self.labels, self.weights, self.dates):
            mapped = getattr(values, "_mmap", None)
            if isinstance(mapped, mmap.mmap):
                mapped.madvise(mmap.MADV_DONTNEED)

    def windows(self, chosen: Ints) -> Floats32:
        """Return the inputs of the samples `chosen`: [chosen, features], or [chosen, window, features]."""
        ends = self.ends[chosen]
        found: Floats32 = self.inputs[ends if self.window == 1 else ends[:, None] + np.arange(1 - self.window, 1)]
        return found

    def take(self, chosen: Ints | slice) -> "Samples":
        """Return the samples `chosen`, which share the rows of inputs."""
        parts = {name: getattr(self, name)[chosen] for name in ("ends", "labels", "weights", "dates")}
        return replace(self, **parts)


@dataclass(frozen=True)
class Split:
    """The samples of a training, in order of time: `train`; `inner`, which chooses the epoch.

    `validation`, which only judges.

    `inner` may be None, and `validation` may be empty. The inputs are scaled by `scaling`, which was fitted on training
    rows alone.
    """

    train: Samples
    inner: Samples | None
    validation: Samples
    scaling: Scaling


def inputs_of(frame: "pl.DataFrame") -> Floats32:
    """Return unscaled inputs [rows, features]: columns in ticks are divided by the row's adr20; NaN where unknown."""
    adr = frame["adr20"].to_numpy()
    ranges = np.where(adr > 0, adr, 1.0)
    inputs = np.empty((frame.height, len(NAMES)), dtype=np.float32)
    for number, name in enumerate(NAMES):
        column = frame[name].to_numpy()
        inputs[:, number] = column / ranges if name in BY_RANGE else column
    return inputs


def labels_of(frame: "pl.DataFrame", target: str, window: int, rows_before: int = 0) -> Labels:
    """Return the rows of `frame` that have a label of `target` and `window - 1` rows before them.

    `frame`: rows of whole sessions; `rows_before` rows precede it.
    """
    label = frame[target].to_numpy()
    known = ~np.isnan(label)
    known[: max(window - 1 - rows_before, 0)] = False
    return Labels(
        ends=rows_before + np.flatnonzero(known),
        labels=label[known].astype(np.float32),
        weights=_weights(frame, target, known),
        dates=frame["trade_date"].to_physical().to_numpy()[known],
    )


def labelled(frame: "pl.DataFrame", target: str, window: int = 1) -> Samples:
    """Return the unscaled samples: the rows of `frame` that have a label of `target` and `window - 1` rows before them.

    A window may reach back into the previous session: its rows are each known at their own as-of time.
    """
    return Samples(inputs=inputs_of(frame), **vars(labels_of(frame, target, window)), window=window)


def _weights(frame: "pl.DataFrame", target: str, known: npt.NDArray[np.bool_]) -> Floats32:
    """Average uniqueness for up_30; 1 / the session's number of labels for a touch, whose labels end together.

    Else 1.
    """
    if target.startswith("up_"):
        return frame["label_weight"].to_numpy()[known].astype(np.float32)
    if target == "prior_vpoc_touched":
        _, place, count = np.unique(
            frame["trade_date"].to_physical().to_numpy()[known], return_inverse=True, return_counts=True
        )
        return (1 / count[place]).astype(np.float32)
    return np.ones(int(known.sum()), dtype=np.float32)


def split(features: "FeatureSet", target: str, window: int = 1, *, inner: bool = False) -> Split:
    """Split by session: the last 20 % of the sessions with a label validate.

    With `inner`, the last 20 % of the other sessions choose the epoch. The label of a session row comes from the next
    session, so the last session before each part is purged. UserError when fewer than 3 sessions have a label, or the
    bars are too long for any row to have one.
    """
    require_horizon(features, target)
    purge = features.options.rows == "session"
    rows = labelled(features.frame, target)
    # The rows, and the scaling fitted on them, are the same for every window.
    scaling = fit_scaling(
        rows.inputs, split_samples(rows, np.unique(rows.dates), target, purge=purge, inner=inner)[0].ends
    )
    samples = replace(rows, **vars(labels_of(features.frame, target, window)), window=window)
    parts = split_samples(samples, np.unique(samples.dates), target, purge=purge, inner=inner)
    scaling.apply(samples.inputs)
    return Split(*parts, scaling)


def split_samples(
    samples: Samples, dates: Dates, target: str, *, purge: bool, inner: bool
) -> tuple[Samples, Samples | None, Samples]:
    """Return the training, inner and validation samples, as in `split`.

    `dates`: all dates of the samples, in order, each once.
    """
    if len(dates) < MIN_LABELLED:
        window = samples.window
        behind = f" and {window - 1} rows before it" if window > 1 else ""
        raise UserError(
            f"{len(dates)} sessions have a value of {target}{behind}, {MIN_LABELLED} are needed; give more sessions"
        )
    first, stop = split_dates(dates, purge=purge)
    train, chooses = split_inner(
        samples.take(slice(_place(samples, stop))), dates[dates < stop], purge=purge, inner=inner
    )
    return train, chooses, samples.take(slice(_place(samples, first), None))


def split_inner(samples: Samples, dates: Dates, *, purge: bool, inner: bool) -> tuple[Samples, Samples | None]:
    """Return the training and inner samples among `samples`, whose sessions are `dates`.

    There are no inner samples if there are too few sessions.
    """
    if not inner or len(dates) < MIN_LABELLED:
        return samples, None
    first, stop = split_dates(dates, purge=purge)
    return samples.take(slice(_place(samples, stop))), samples.take(slice(_place(samples, first), None))


def _place(samples: Samples, date: int) -> int:
    """Return the number of the first sample of `date` or later."""
    # Search for a number of the same type, or numpy would copy the dates.
    return int(np.searchsorted(samples.dates, np.int32(date)))


def split_dates(dates: Dates, *, purge: bool) -> tuple[int, int]:
    """Return the first date that validates, and the date before which samples train.

    `dates`: all dates, in order, each once.
    """
    validating = max(1, round(VALIDATION_SHARE * len(dates)))
    first = int(dates[-validating])
    return first, int(dates[-validating - 1]) if purge else first


def require_horizon(features: "FeatureSet", target: str) -> None:
    """Raise UserError when the bars are so long that no row can have a value of `target`."""
    bars_of_session = RTH_MINUTES * 60 // max(features.bar_seconds, 1)
    if target == "up_30" and bars_of_session <= HORIZON:
        raise UserError(
            f"--target {target} looks {HORIZON} bars ahead within a session, which has {bars_of_session} bars of "
            f"{features.bar_seconds} seconds; give shorter bars or choose another --target"
        )
