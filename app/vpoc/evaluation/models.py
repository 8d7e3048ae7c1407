"""The interface of evaluated models, and the baselines: constant rate, rate by where the open sits, logistic ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats
from vpoc.evaluation.logistic import fit_logistic, probability
from vpoc.evaluation.open_place import PLACES
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.verdict import NETWORK
from vpoc.features.table import NAMES
from vpoc.training.inputs.scaling import fit_scaling

Inputs = npt.NDArray[Any]
"""[rows, columns], of a floating type."""

Predict = Callable[[Inputs], Floats]
"""Inputs -> the probability that the label is 1, [rows]."""
Fitter = Callable[[Inputs, Floats, Floats, int], Predict]
"""(inputs [rows, columns], labels [rows], weights [rows], seed) -> the fitted model."""

LOGISTIC_FEATURES = ("vpoc_dist", "close_vs_va", "vix_z20")
"""The features of `logistic`: in ticks per adr20, as a code, and as a z-score."""
BASELINES = ("constant", "conditional", "logistic", "linear")
"""In the order of simplicity."""
PRIOR_WEIGHT = 1.0
"""Number of labels that the overall rate counts as, where a rate is computed from few labels."""
PRIOR_SIZE = 0.1
"""Standard deviation expected of a coefficient of `linear`: how much a column's size changes the logit.

It keeps 54 coefficients from being fitted to chance when there are few sessions.
"""


@dataclass(frozen=True)
class Model:
    """`inputs` [rows, columns]: what the model sees of all rows. `fit` gets only the inputs of the training rows."""

    name: str
    inputs: Inputs
    fit: Fitter


def all_models(rows: LabelledRows, network: Fitter) -> tuple[Model, ...]:
    """The baselines on what each sees of `rows`, and `network`, which has them itself and is given their numbers."""
    chosen = [NAMES.index(name) for name in LOGISTIC_FEATURES]
    return (
        Model("constant", rows.inputs[:, :0], fit_constant),
        Model("conditional", rows.places[:, None], fit_conditional),
        Model("logistic", rows.inputs[:, chosen], scaled(fit_logistic_model)),
        Model("linear", rows.inputs, scaled(fit_linear)),
        Model(NETWORK, np.arange(len(rows))[:, None], network),
    )


def fit_constant(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:  # noqa: ARG001 - the protocol
    """Fit the weighted rate of the labels, shrunk towards one half by half a label of each kind."""
    rate = ((weights * labels).sum() + PRIOR_WEIGHT / 2) / (weights.sum() + PRIOR_WEIGHT)
    return lambda given: np.full(len(given), rate)


def fit_conditional(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
    """Fit the weighted rate of the labels by place, shrunk towards the overall rate by one label.

    `inputs` [rows, 1]: places.
    """
    overall = fit_constant(inputs, labels, weights, seed)(inputs[:1])[0]
    place = inputs[:, 0].astype(np.int64)
    ones = np.bincount(place, weights * labels, len(PLACES))
    total = np.bincount(place, weights, len(PLACES))
    rates = (ones + PRIOR_WEIGHT * overall) / (total + PRIOR_WEIGHT)
    return lambda given: rates[given[:, 0].astype(np.int64)]


def fit_logistic_model(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:  # noqa: ARG001
    """Return a logistic regression with a small ridge."""
    coefficients = fit_logistic(inputs, labels, weights)
    return lambda given: probability(given, coefficients)


def fit_linear(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:  # noqa: ARG001
    """Return a logistic regression on all columns, with a Gaussian prior of PRIOR_SIZE on each coefficient."""
    # The weights are independent labels; the loss is a mean over them.
    ridge = 1 / (max(float(weights.sum()), 1.0) * PRIOR_SIZE**2)
    coefficients = fit_logistic(inputs, labels, weights, ridge)
    return lambda given: probability(given, coefficients)


def scaled(fit: Fitter) -> Fitter:
    """Return `fit` on columns that are scaled as in a training, with a scaling fitted on the same rows."""

    def fit_scaled(inputs: Inputs, labels: Floats, weights: Floats, seed: int) -> Predict:
        rows = np.array(inputs, np.float32)
        scaling = fit_scaling(rows, np.arange(len(rows)))
        fitted = fit(scaling.apply(rows), labels, weights, seed)
        return lambda given: fitted(scaling.apply(np.array(given, np.float32)))

    return fit_scaled
