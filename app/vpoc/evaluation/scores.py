"""Weighted scores of predictions: log-loss, Brier, accuracy, calibration; with intervals over sessions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats
from vpoc.evaluation.bootstrap import Bootstrap, Interval, by_session
from vpoc.evaluation.logistic import fit_logistic, probability
from vpoc.evaluation.rows import LabelledRows

CLIP = 1e-6
"""Probabilities are clipped this far from 0 and 1, so that one wrong certainty costs 13.8, not infinity."""
MOST_BINS = 10
SESSIONS_OF_A_BIN = 10
"""Sessions per bin; with fewer, the rate of a bin says little."""
FEWEST_IN_BIN = 2
"""Fewest sessions of a bin; one alone has no interval."""
LEAST_SPREAD = 0.05
"""Standard deviation of the logits below which the slope of calibration says nothing."""


@dataclass(frozen=True)
class Scores:
    """The scores of one model.

    `slope`, `intercept`: of the labels on the logits; 1 and 0 are ideal, None without spread.
    """

    log_loss: Interval
    brier: Interval
    accuracy: Interval
    intercept: Interval | None
    slope: Interval | None
    bins: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Return the scores as plain JSON values."""
        calibration = {
            "intercept": None if self.intercept is None else self.intercept.as_json(),
            "slope": None if self.slope is None else self.slope.as_json(),
            "bins": list(self.bins),
        }
        main = {name: getattr(self, name).as_json() for name in ("log_loss", "brier", "accuracy")}
        return {**main, "calibration": calibration}


def log_losses(labels: Floats, predicted: Floats) -> Floats:
    """Return -ln of the probability given to the actual label, [rows]."""
    p = np.clip(predicted, CLIP, 1 - CLIP)
    return -np.where(labels > 0, np.log(p), np.log1p(-p))


def brier_scores(labels: Floats, predicted: Floats) -> Floats:
    """Return the squared distance of probability and label, [rows]."""
    return (predicted - labels) ** 2


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Return the weighted mean of `values` [rows]."""
    return float((weights * values).sum() / weights.sum())


def _correct(labels: Floats, predicted: Floats) -> Floats:
    correct: npt.NDArray[np.bool_] = (predicted > 0.5) == (labels > 0)
    return correct.astype(np.float64)


SCORES = {"log_loss": log_losses, "brier": brier_scores, "accuracy": _correct}
"""Of each row, by name."""


def plain_scores(rows: LabelledRows, span: slice, predicted: Floats) -> dict[str, float]:
    """The mean of each of SCORES of `predicted` on the rows of `span`."""
    labels, weights = rows.labels[span], rows.weights[span]
    return {name: weighted_mean(score(labels, predicted), weights) for name, score in SCORES.items()}


def scores(rows: LabelledRows, span: slice, predicted: Floats, bootstrap: Bootstrap) -> Scores:
    """Return the scores of `predicted` on the rows of `span`, over the sessions that `bootstrap` was drawn for."""
    labels, weights, sessions = rows.labels[span], rows.weights[span], rows.sessions[span]
    columns = [score(labels, predicted) for score in SCORES.values()]
    sums = by_session(sessions, weights[:, None] * np.column_stack([*columns, np.ones(len(labels))]))
    means = {name: bootstrap.ratio(sums[:, place], sums[:, -1]) for place, name in enumerate(SCORES)}
    intercept, slope = _calibration(rows, span, predicted, bootstrap)
    return Scores(**means, intercept=intercept, slope=slope, bins=_bins(rows, span, predicted, bootstrap))


def differences(
    rows: LabelledRows, span: slice, predicted: Floats, other: Floats, bootstrap: Bootstrap
) -> dict[str, Interval]:
    """Return the log-loss and Brier score of `predicted` less those of `other`: below 0 if `predicted` is better."""
    labels, weights = rows.labels[span], rows.weights[span]
    columns = [score(labels, predicted) - score(labels, other) for score in (log_losses, brier_scores)]
    sums = by_session(rows.sessions[span], weights[:, None] * np.column_stack([*columns, np.ones(len(labels))]))
    return {name: bootstrap.ratio(sums[:, place], sums[:, 2]) for place, name in enumerate(("log_loss", "brier"))}


def _calibration(
    rows: LabelledRows, span: slice, predicted: Floats, bootstrap: Bootstrap
) -> tuple[Interval | None, Interval | None]:
    """Return the intercept and slope of a logistic regression of the labels on the logits of `predicted` (Cox 1958).

    Each replicate makes one Newton step from the optimum of all rows, which is close to its own.
    """
    labels, weights = rows.labels[span], rows.weights[span]
    p = np.clip(predicted, CLIP, 1 - CLIP)
    logits = np.log(p) - np.log1p(-p)
    if logits.std() < LEAST_SPREAD:
        return None, None
    a, b = fit_logistic(logits[:, None], labels, weights, ridge=0.0)
    mean = probability(logits[:, None], np.array([a, b]))
    error, curve = weights * (labels - mean), weights * mean * (1 - mean)
    columns = np.column_stack([error, error * logits, curve, curve * logits, curve * logits**2])
    g0, g1, h0, h1, h2 = bootstrap.sums(by_session(rows.sessions[span], columns)).T
    determinant = h0 * h2 - h1**2
    some = determinant > 1e-12 * np.maximum(h0 * h2, 1e-300)
    if not some.any():
        return None, None
    g0, g1, h0, h1, h2, determinant = (part[some] for part in (g0, g1, h0, h1, h2, determinant))
    return (
        bootstrap.interval(float(a), a + (h2 * g0 - h1 * g1) / determinant),
        bootstrap.interval(float(b), b + (h0 * g1 - h1 * g0) / determinant),
    )


def _bins(rows: LabelledRows, span: slice, predicted: Floats, bootstrap: Bootstrap) -> tuple[dict[str, Any], ...]:
    """Return the mean prediction and the rate of the labels in bins of about equal weight.

    There are at most 10 bins, and at most one for 10 sessions. Equal predictions are in one bin; a bin of fewer than
    two sessions is merged with its neighbour.
    """
    labels, weights, sessions = rows.labels[span], rows.weights[span], rows.sessions[span]
    order = np.argsort(predicted, kind="stable")
    rank = np.cumsum(weights[order]) / weights.sum()
    bins = min(max(len(np.unique(sessions)) // SESSIONS_OF_A_BIN, 2), MOST_BINS)
    edges = predicted[order][np.searchsorted(rank, np.arange(1, bins) / bins)]
    place = np.searchsorted(np.unique(edges), predicted, side="left")
    _, number = np.unique(sessions, return_inverse=True)
    found: list[dict[str, Any]] = []
    taken = np.zeros(len(labels), dtype=np.bool_)
    places = np.unique(place)
    for last in places:
        taken |= place == last
        some = len(np.unique(number[taken]))
        rest = len(np.unique(number[place > last]))
        if some < FEWEST_IN_BIN or (last != places[-1] and rest < FEWEST_IN_BIN):
            continue
        inside = weights * taken
        ones, total = by_session(sessions, np.column_stack([inside * labels, inside])).T
        found.append(
            {
                "rows": int(taken.sum()),
                "sessions": some,
                "predicted": weighted_mean(predicted, inside),
                "observed": bootstrap.ratio(ones, total).as_json(),
            }
        )
        taken[:] = False
    return tuple(found)
