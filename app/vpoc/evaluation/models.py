"""The protocol of what is evaluated, and the baselines: constant rate, rate by where the open sits, logistic."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats
from vpoc.evaluation.logistic import fit_logistic, probability
from vpoc.evaluation.open_place import PLACES
from vpoc.evaluation.rows import LabelledRows
from vpoc.features.table import NAMES

Inputs = npt.NDArray[Any]
"""[rows, columns], of a floating type."""

Predict = Callable[[Inputs], Floats]
"""Inputs -> the probability that the label is 1, [rows]."""
Fitter = Callable[[Inputs, Floats, Floats, int], Predict]
"""(inputs [rows, columns], labels [rows], weights [rows], seed) -> the fitted model."""

LOGISTIC_FEATURES = ("vpoc_dist", "close_vs_va", "vix_z20")
"""In ticks per atr20, as a code, and as a z-score."""
BASELINES = ("constant", "conditional", "logistic")
NETWORK = "network"
PRIOR_WEIGHT = 1.0
"""Labels that the overall rate counts as, where a rate is taken over few."""
STILL = 1e-6
"""A column with a smaller standard deviation did not vary; float32 rounding alone gives some."""


@dataclass(frozen=True)
class Model:
    """`inputs` [rows, columns] are what it sees of all rows; `fit` is given those of the training rows alone."""

    name: str
    inputs: Inputs
    fit: Fitter


def all_models(rows: LabelledRows, network: Fitter) -> tuple[Model, ...]:
    """The three baselines and `network`, on what each sees of `rows`."""
    chosen = [NAMES.index(name) for name in LOGISTIC_FEATURES]
    return (
        Model("constant", rows.inputs[:, :0], fit_constant),
        Model("conditional", rows.places[:, None], fit_conditional),
        Model("logistic", rows.inputs[:, chosen], standardised(fit_logistic_model)),
        Model(NETWORK, rows.inputs, standardised(network)),
    )


def fit_constant(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:  # noqa: ARG001 - the protocol
    """The weighted rate of the labels, drawn to one half by half a label each way."""
    rate = ((weights * labels).sum() + PRIOR_WEIGHT / 2) / (weights.sum() + PRIOR_WEIGHT)
    return lambda given: np.full(len(given), rate)


def fit_conditional(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
    """The weighted rate of the labels by place, drawn to the overall rate by one label; `inputs` [rows, 1]: places."""
    overall = fit_constant(inputs, labels, weights, seed)(inputs[:1])[0]
    place = inputs[:, 0].astype(np.int64)
    ones = np.bincount(place, weights * labels, len(PLACES))
    total = np.bincount(place, weights, len(PLACES))
    rates = (ones + PRIOR_WEIGHT * overall) / (total + PRIOR_WEIGHT)
    return lambda given: rates[given[:, 0].astype(np.int64)]


def fit_logistic_model(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:  # noqa: ARG001
    """Logistic regression with a small ridge."""
    coefficients = fit_logistic(inputs, labels, weights)
    return lambda given: probability(given, coefficients)


def standardised(fit: Fitter) -> Fitter:
    """`fit` on columns less their mean, over their standard deviation, both of the rows it is fitted on.

    A column that does not vary there is 0 everywhere.
    """

    def fit_scaled(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
        mean = inputs.mean(axis=0, dtype=np.float64)
        deviation = inputs.std(axis=0, dtype=np.float64)
        size = np.where(deviation > STILL, deviation, np.inf)
        fitted = fit((inputs - mean) / size, labels, weights, seed)
        return lambda given: fitted((given - mean) / size)

    return fit_scaled
