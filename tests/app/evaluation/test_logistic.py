import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpoc.evaluation.logistic import fit_logistic, probability


def sample(seed, rows=200, columns=3):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns))
    labels = (random.random(rows) < 1 / (1 + np.exp(-inputs[:, 0]))).astype(float)
    return inputs, labels, random.random(rows) + 0.1


def objective(inputs, labels, weights, coefficients, ridge):
    logits = coefficients[0] + inputs @ coefficients[1:]
    losses = np.logaddexp(0.0, logits) - labels * logits
    return np.average(losses, weights=weights) + ridge / 2 * (coefficients[1:] ** 2).sum()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1e-4, 0.1]))
def test_no_coefficients_nearby_or_far_are_better(seed, ridge):
    inputs, labels, weights = sample(seed, rows=80, columns=2)
    found = fit_logistic(inputs, labels, weights, ridge)
    best = objective(inputs, labels, weights, found, ridge)
    for size, step in itertools.product((1e-3, 0.1, 1.0), itertools.product((-1, 0, 1), repeat=3)):
        assert objective(inputs, labels, weights, found + size * np.array(step), ridge) >= best - 1e-14


def test_the_optimum_is_that_of_a_search_over_a_grid():
    inputs, labels, weights = sample(3, columns=1)

    def loss(intercept, slope):
        p = 1 / (1 + np.exp(-(intercept + slope * inputs[:, 0])))
        each = -(labels * np.log(p) + (1 - labels) * np.log(1 - p))
        return (weights * each).sum() / weights.sum() + 0.05 * slope**2

    centre, width = np.zeros(2), 4.0
    for _ in range(25):
        places = [centre + width * np.array(step) for step in itertools.product((-1, -0.5, 0, 0.5, 1), repeat=2)]
        centre, width = min(places, key=lambda place: loss(*place)), 0.6 * width
    assert fit_logistic(inputs, labels, weights, 0.1) == pytest.approx(centre, abs=1e-4)


def test_a_weight_of_two_is_a_row_given_twice():
    inputs, labels, _ = sample(5)
    weights = np.random.default_rng(5).integers(1, 4, len(labels))
    twice = np.repeat(np.arange(len(labels)), weights)
    wanted = fit_logistic(inputs[twice], labels[twice], np.ones(len(twice)))
    assert fit_logistic(inputs, labels, weights.astype(float)) == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("ridge", [0.0, 1e-4])
@pytest.mark.parametrize("labels", ["separable", "ones", "zeros"])
def test_certain_labels_give_finite_coefficients(labels, ridge):
    inputs = np.linspace(-1, 1, 50)[:, None]
    wanted = {"separable": inputs[:, 0] > 0, "ones": np.ones(50), "zeros": np.zeros(50)}[labels].astype(float)
    found = fit_logistic(inputs, wanted, np.ones(50), ridge)
    assert np.isfinite(found).all()
    assert np.abs(probability(inputs, found) - wanted).max() < 0.5


def test_huge_logits_do_not_overflow():
    assert probability(np.array([[1e6], [-1e6]]), np.array([0.0, 1.0])).tolist() == [1, 0]
