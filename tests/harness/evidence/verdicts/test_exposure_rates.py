from itertools import product
from math import inf

import numpy as np
import pytest
from scipy.integrate import quad

from harness.evidence.verdicts.exposure_rates import NEAR_ZERO, expected_failures, failure_rate_bound, mtbf_bound


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, 3.40), (1, 6.90), (2, 9.27), (3, 11.34), (4, 13.25), (5, 15.06)]
)
def test_so_many_failures_are_to_be_expected_at_most(failures: int, expected: float) -> None:
    assert round(expected_failures(failures, 0.95), 2) == expected


@pytest.mark.parametrize(("failures", "confidence"), [*product([0, 1, 7, 30], [0.5, 0.95, 1 - 0.05 / 40])])
def test_the_bound_is_where_the_averaged_ratio_is_what_the_confidence_asks_for(
    failures: int, confidence: float
) -> None:
    """Compares the series with the integral it stands for; u = v^4, so that the density has no pole at 0."""
    x = expected_failures(failures, confidence)
    assert NEAR_ZERO == 0.25
    ratio, _ = quad(lambda v: v ** (4 * failures) * np.exp(x * (1 - v**4)), 0, 1, epsabs=0, epsrel=1e-10)
    assert ratio == pytest.approx(1 / (1 - confidence), rel=1e-6)


def test_twelve_hours_without_a_failure_show_three_and_a_half() -> None:
    assert 3.5 < mtbf_bound(0, 12, 0.95) < 3.6
    assert 1.7 < mtbf_bound(1, 12, 0.95) < 1.8
    assert failure_rate_bound(0, 12, 0.95) == pytest.approx(1 / mtbf_bound(0, 12, 0.95))
    assert (mtbf_bound(3, 0, 0.95), failure_rate_bound(3, 0, 0.95)) == (0, inf)


def test_more_failures_and_more_confidence_claim_less() -> None:
    by_failures = [mtbf_bound(failures, 10, 0.95) for failures in range(300)]
    assert by_failures == sorted(by_failures, reverse=True)
    assert mtbf_bound(2, 10, 0.99) < mtbf_bound(2, 10, 0.95) < mtbf_bound(2, 20, 0.95)


@pytest.mark.parametrize(("failures", "hours", "confidence"), [(-1, 1, 0.9), (1, -1, 0.9), (1, 1, 1), (1, 1, 0)])
def test_what_is_no_count_is_refused(failures: int, hours: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="hours at confidence"):
        mtbf_bound(failures, hours, confidence)


def test_looked_at_before_each_failure_it_is_wrong_in_less_than_one_of_twenty() -> None:
    """Simulates one failure an hour and looks at the bound a hundred times, just before a failure: at its highest."""
    chance, paths, looks = np.random.default_rng(7), 4000, 100
    times = np.cumsum(chance.exponential(1.0, (paths, looks)), axis=1)
    bounds = times / np.array([expected_failures(n, 0.95) for n in range(looks)])
    wrong = (bounds > 1.0).any(axis=1).mean()
    # With 20,000 paths it is 4.75 %. Allowed are 5 % and three standard deviations of so many paths.
    assert 0.03 < wrong < 0.05 + 3 * (0.05 * 0.95 / paths) ** 0.5
