"""Weighted logistic regression by Newton's method, in float64 and without BLAS, so that threads do not change it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from vpoc.arrays import Floats

RIDGE = 1e-4
"""The penalty's factor, in units of the mean loss: just enough for an optimum if the labels can be separated."""
MOST_STEPS = 100
DONE = 1e-10
"""Convergence limit of the gradient's largest entry; the loss is of the order of 1."""


def fit_logistic(inputs: npt.NDArray[Any], labels: Floats, weights: Floats, ridge: float = RIDGE) -> Floats:
    """Return the coefficients [1 + columns], the intercept first, that minimise `_objective`."""
    design = _design(inputs)
    share = weights / weights.sum()
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    # Keeps the matrix regular if all labels are the same and the rate approaches 0 or 1.
    floor = 1e-9 * np.eye(len(penalty))
    coefficients = np.zeros(len(penalty))
    loss = _objective(design, labels, share, coefficients, penalty)
    for _ in range(MOST_STEPS):
        mean = _sigmoid(np.einsum("ij,j->i", design, coefficients))
        gradient = np.einsum("ij,i->j", design, share * (mean - labels)) + penalty * coefficients
        if np.abs(gradient).max() < DONE:
            break
        curvature = np.einsum("ij,ik->jk", design * (share * mean * (1 - mean))[:, None], design)
        step = np.linalg.solve(curvature + np.diag(penalty) + floor, gradient)
        size = 1.0
        while (following := _objective(design, labels, share, coefficients - size * step, penalty)) > loss:
            size /= 2
            if size < DONE:
                return coefficients
        coefficients, loss = coefficients - size * step, following
    return coefficients


def probability(inputs: npt.NDArray[Any], coefficients: Floats) -> Floats:
    """Return the probability of 1, [rows]."""
    return _sigmoid(np.einsum("ij,j->i", _design(inputs), coefficients))


def _design(inputs: npt.NDArray[Any]) -> Floats:
    return np.column_stack([np.ones(len(inputs)), inputs])


def _objective(design: Floats, labels: Floats, share: Floats, coefficients: Floats, penalty: Floats) -> float:
    logits = np.einsum("ij,j->i", design, coefficients)
    losses = np.logaddexp(0.0, logits) - labels * logits
    return float((share * losses).sum() + (penalty * coefficients**2).sum() / 2)


def _sigmoid(logits: Floats) -> Floats:
    # Use the absolute value, so that exp cannot overflow.
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)
