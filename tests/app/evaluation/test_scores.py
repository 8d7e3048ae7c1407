from math import log

import numpy as np
import pytest

from vpoc.evaluation.bootstrap import Bootstrap
from vpoc.evaluation.logistic import fit_logistic
from vpoc.evaluation.rows import LabelledRows
from vpoc.evaluation.scores import differences, log_losses, plain_scores, scores
from vpoc.features.table import NAMES


def rows_of(labels, weights=None, sessions=None):
    count = len(labels)
    weights = np.ones(count) if weights is None else np.asarray(weights, dtype=float)
    sessions = np.arange(count) if sessions is None else np.asarray(sessions)
    dates = np.arange(int(sessions[-1]) + 1)
    return LabelledRows(
        np.empty((count, len(NAMES)), np.float32), sessions, np.asarray(labels, float), weights, sessions, dates, 1
    )


def drawn(rows, replicates=400):
    return Bootstrap.draw(len(rows.dates), 1, replicates, 1)


def every(rows):
    return slice(0, len(rows))


def test_scores_by_hand():
    rows = rows_of([1, 0, 1, 0], weights=[1, 1, 2, 4])
    predicted = np.array([0.8, 0.8, 0.4, 0.1])
    expected = {
        "log_loss": -(log(0.8) + log(0.2) + 2 * log(0.4) + 4 * log(0.9)) / 8,
        "brier": (0.04 + 0.64 + 2 * 0.36 + 4 * 0.01) / 8,
        "accuracy": (1 + 4) / 8,
    }
    assert plain_scores(rows, every(rows), predicted) == pytest.approx(expected)
    found = scores(rows, every(rows), predicted, drawn(rows))
    assert {name: getattr(found, name).value for name in expected} == pytest.approx(expected)
    assert all(getattr(found, name).low < value < getattr(found, name).high for name, value in expected.items())


def test_scores_of_a_span_are_those_of_its_rows_alone():
    rows = rows_of([1, 0, 1, 0, 1, 1], weights=[5, 5, 1, 2, 3, 4])
    part = rows_of([1, 0, 1, 1], weights=[1, 2, 3, 4])
    predicted = np.array([0.3, 0.4, 0.5, 0.6])
    assert scores(rows, slice(2, 6), predicted, drawn(part)) == scores(part, every(part), predicted, drawn(part))


def test_certainty_costs_no_infinity():
    assert log_losses(np.array([1.0, 0, 1]), np.array([0.0, 1, 1])) == pytest.approx([-log(1e-6)] * 2 + [0], abs=1e-5)


def test_a_difference_is_that_of_the_scores_with_its_sign():
    rows = rows_of([1, 0, 1, 0] * 10, weights=np.arange(1, 41))
    good, bad = np.tile([0.7, 0.3, 0.7, 0.3], 10), np.full(40, 0.5)
    found = differences(rows, every(rows), good, bad, drawn(rows))
    for name in ("log_loss", "brier"):
        one, other = (plain_scores(rows, every(rows), p)[name] for p in (good, bad))
        assert found[name].value == pytest.approx(one - other)
        assert found[name].high < 0
    turned = differences(rows, every(rows), bad, good, drawn(rows))
    assert turned["brier"].low > 0


def test_the_right_calibration_is_found_and_a_wrong_one_shown():
    random = np.random.default_rng(4)
    logits = random.normal(size=4000)
    rows = rows_of((random.random(4000) < 1 / (1 + np.exp(-logits))).astype(float))
    bootstrap = drawn(rows, 200)
    right = scores(rows, every(rows), 1 / (1 + np.exp(-logits)), bootstrap)
    assert right.slope.low < 1 < right.slope.high
    assert right.intercept.low < 0 < right.intercept.high
    sure = scores(rows, every(rows), 1 / (1 + np.exp(-2 * logits + 1)), bootstrap)
    assert sure.slope.low < 0.5 < sure.slope.high
    assert sure.intercept.low < 0.5 < sure.intercept.high
    assert sure.slope.high < 0.7


def test_intervals_of_the_calibration_are_those_of_fitting_it_to_every_replicate():
    random = np.random.default_rng(2)
    sessions = np.repeat(np.arange(150), 4)
    logits = 1.5 + 0.5 * random.normal(size=600) + np.repeat(random.normal(size=150), 4)
    weights = random.random(600) + 0.2
    labels = (random.random(600) < 1 / (1 + np.exp(-0.7 * logits))).astype(float)
    rows = rows_of(labels, weights, sessions)
    bootstrap = Bootstrap.draw(150, 1, 300, 1)
    found = scores(rows, every(rows), 1 / (1 + np.exp(-logits)), bootstrap)
    refitted = [fit_logistic(logits[:, None], labels, weights * count[sessions], 0.0) for count in bootstrap.counts]
    wanted = [bootstrap.interval(0.0, column) for column in np.array(refitted).T]
    for interval, exact in zip((found.intercept, found.slope), wanted, strict=True):
        assert interval.low == pytest.approx(exact.low, abs=0.04)
        assert interval.high == pytest.approx(exact.high, abs=0.04)


def test_equal_predictions_have_no_slope_and_one_bin():
    rows = rows_of([1, 0, 1] * 20)
    found = scores(rows, every(rows), np.full(60, 0.6), drawn(rows))
    assert found.slope is found.intercept is None
    (only,) = found.bins
    assert (only["rows"], only["sessions"], only["predicted"]) == (60, 60, pytest.approx(0.6))
    assert only["observed"]["value"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("sessions", "bins"), [(8, 2), (45, 4), (300, 10)])
def test_bins_hold_every_row_once_in_order(sessions, bins):
    random = np.random.default_rng(3)
    labels = (random.random(3 * sessions) < 0.5).astype(float)
    rows = rows_of(labels, sessions=np.repeat(np.arange(sessions), 3))
    predicted = random.random(len(labels))
    found = scores(rows, every(rows), predicted, drawn(rows)).bins
    assert len(found) == bins
    assert sum(b["rows"] for b in found) == len(labels)
    assert max(b["rows"] for b in found) - min(b["rows"] for b in found) <= 3
    means = [b["predicted"] for b in found]
    assert means == sorted(means)
    total = sum(b["rows"] * b["observed"]["value"] for b in found)
    assert total == pytest.approx(labels.sum())
    lowest = np.argsort(predicted)[: found[0]["rows"]]
    assert found[0]["observed"]["value"] == pytest.approx(labels[lowest].mean())
    assert found[0]["sessions"] == len(np.unique(rows.sessions[lowest]))
