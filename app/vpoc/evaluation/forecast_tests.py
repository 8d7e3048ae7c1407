"""Tests of out-of-sample forecasts: whether one is better than chance, and whether one is better than another. Pure.

Rows of a session are one observation: sums by session, and if sessions share labels their autocovariances with
Bartlett's weights (Newey and West 1987). All tests are one-sided; the t-value has one degree of freedom less than there
are independent runs of sessions.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from vpoc.arrays import Floats
from vpoc.evaluation.bootstrap import by_session
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.scores import log_losses

ALPHA = 0.01
"""Significance level of all tests of an answer together."""


def p_beats_chance(rows: LabelledRows, span: slice, predicted: Floats, chance: Floats, run: int) -> float:
    """Return the p-value of Clark and West (2007): whether `predicted` knows more than a constant nested in it.

    The statistic is the mean of 2 (label - rate) (predicted - its mean): the difference of Brier scores without the
    cost of having fitted something. Rate and mean are those of each test block, in which `chance` has one value: a
    model that differs only in its level gains or loses by the drift of the rate, which is no knowledge. `run`: the
    number of sessions that share labels.
    """
    block = np.cumsum(np.diff(chance, prepend=chance[:1]) != 0)
    weights = rows.weights[span]
    total = np.maximum(np.bincount(block, weights), 1e-300)
    labels, given = (
        values - (np.bincount(block, weights * values) / total)[block] for values in (rows.labels[span], predicted)
    )
    return _p_of_mean(rows, span, 2 * labels * given, run)


def p_better(rows: LabelledRows, span: slice, predicted: Floats, other: Floats, run: int) -> float:
    """Return the p-value of Diebold and Mariano (1995): whether `predicted` has a lower log-loss than `other`."""
    labels = rows.labels[span]
    return _p_of_mean(rows, span, log_losses(labels, other) - log_losses(labels, predicted), run)


def rejected(p_values: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names of the p-values that Holm's (1979) procedure rejects, in the given order."""
    found = set[str]()
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[name] > ALPHA / (len(p_values) - place):
            break
        found.add(name)
    return tuple(name for name in p_values if name in found)


def _p_of_mean(rows: LabelledRows, span: slice, values: Floats, run: int) -> float:
    """Return the p-value of the weighted mean of `values` [rows of span] being above 0."""
    weights = rows.weights[span]
    sums = by_session(rows.sessions[span], np.column_stack([weights * values, weights]))
    tops, bottoms = sums.T
    mean = tops.sum() / bottoms.sum()
    error = tops - mean * bottoms
    variance = float((error**2).sum())
    for lag in range(1, min(run, len(error))):
        variance += 2 * (1 - lag / run) * float((error[lag:] * error[:-lag]).sum())
    freedom = len(error) / run - 1
    # If the forecasts are the same, only rounding errors remain.
    if freedom <= 0 or variance <= (1e-12 * float(bottoms.sum())) ** 2:
        return 1.0
    t = float(mean * bottoms.sum()) / math.sqrt(variance)
    # Abramowitz and Stegun 26.7.8.
    z = t * (1 - 1 / (4 * freedom)) / math.sqrt(1 + t * t / (2 * freedom))
    return NormalDist().cdf(-z)
