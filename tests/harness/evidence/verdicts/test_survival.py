"""Tests of the estimated share of trainings that reach an age, and of its band."""

import sys
from random import Random

import pytest
from scipy.stats import CensoredData, beta, ecdf

from harness.evidence.verdicts.survival import survival
from harness.evidence.verdicts.totals import Life


def test_nothing_is_known_of_no_run() -> None:
    assert survival([], 0.95) == ()


def test_the_estimate_is_the_product_limit_of_scipy() -> None:
    chance = Random(1)
    # With so few different ages, some runs fail at the age at which others end.
    lives = [Life(chance.randint(1, 12) / 2, chance.random() < 0.5) for _ in range(60)]
    failed = [life.hours for life in lives if life.failed]
    censored = [life.hours for life in lives if not life.failed]
    expected = ecdf(CensoredData(uncensored=failed, right=censored)).sf
    for point in survival(lives, 0.95):
        assert point.share == pytest.approx(float(expected.evaluate(point.hours)))


@pytest.mark.parametrize(("runs", "failures"), [(1, 0), (14, 0), (14, 3), (14, 13), (5, 5)])
def test_for_runs_of_equal_length_the_band_is_clopper_and_pearsons(runs: int, failures: int) -> None:
    lives = [Life(0.5, failed=True)] * failures + [Life(1.0)] * (runs - failures)
    point = [one for one in survival(lives, 0.95) if one.hours <= 0.5][-1]
    left = runs - failures
    assert point.low == pytest.approx(float(beta.ppf(0.025, left, failures + 1)) if left else 0.0)
    assert point.high == pytest.approx(float(beta.ppf(0.975, left + 1, failures)) if failures else 1.0)


def test_where_nothing_failed_nobody_waits_for_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = float(beta.ppf(0.025, 3, 1))
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert survival([Life(1.0)] * 3, 0.95)[0].low == pytest.approx(expected)


def test_beyond_the_longest_run_nothing_is_claimed() -> None:
    last = survival([Life(1.0), Life(2.0, failed=True), Life(3.0)], 0.95)[-1]
    assert (last.hours, last.low) == (3.0, 0.0)


def test_the_band_holds_the_truth_as_often_as_it_says() -> None:
    """Simulates failures at a constant rate in runs of several lengths, and looks at the band at one age."""
    chance, missed, trials = Random(7), 0, 2000
    for _ in range(trials):
        lives = []
        for _ in range(12):
            fails, ends = chance.expovariate(0.5), chance.uniform(0.5, 3.0)
            lives.append(Life(min(fails, ends), fails < ends))
        at = [point for point in survival(lives, 0.9) if point.hours <= 1.0][-1]
        missed += not at.low <= 0.6065306597 <= at.high
    assert missed <= 0.1 * trials + 3 * (trials * 0.09) ** 0.5
    assert missed >= 0.01 * trials
