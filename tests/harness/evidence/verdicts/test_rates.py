import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from harness.evidence.verdicts.rates import lower_bound, upper_bound

counts = st.integers(0, 300).flatmap(lambda runs: st.tuples(st.integers(0, runs), st.just(runs)))


@pytest.mark.parametrize(
    ("passes", "runs", "confidence", "expected"),
    [
        (0, 4, 0.95, 0.0),
        (1, 1, 0.95, 0.040404040),
        (5, 5, 0.95, 0.511828931),
        (16, 16, 0.95, 0.809308680),
        (33, 33, 0.95, 0.902252929),
        (7, 9, 0.95, 0.306526606),
        (60, 100, 0.9, 0.443048991),
        (1, 100, 0.8, 0.000005028),
        (99, 100, 0.99, 0.915295734),
        (300, 307, 0.999, 0.922711420),
        (10_000, 10_003, 0.95, 0.998866851),
    ],
)
def test_it_is_the_bound_that_scipy_computes(passes: int, runs: int, confidence: float, expected: float) -> None:
    """SciPy 1.17.1: `scipy.optimize.brentq` (xtol 1e-13) of the logarithm below minus log(1 / (1 - confidence)).

    With s passes, f failures, a = 1 + s, b = .25 + f:
    log(betaincc(a, b, x)) + betaln(a, b) - log(betaincc(1, .25, x)) - betaln(1, .25) - s log(x) - f log(1 - x).
    """
    assert lower_bound(passes, runs, confidence) == pytest.approx(expected, abs=2e-9)


@pytest.mark.parametrize(("rate", "runs"), [(0.5, 5), (0.8, 16), (0.9, 33)])
def test_straight_passes_that_show_a_rate(rate: float, runs: int) -> None:
    assert lower_bound(runs, runs, 0.95) > rate
    assert lower_bound(runs - 1, runs - 1, 0.95) < rate


@given(counts, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_it_is_never_surer_than_the_exact_bound_for_a_number_of_runs_fixed_before(
    count: tuple[int, int], confidence: float
) -> None:
    passes, runs = count
    low = lower_bound(passes, runs, confidence)
    if runs:
        exact = binomtest(passes, runs, alternative="greater").proportion_ci(confidence, "exact").low
        assert low <= exact + 1e-6
    assert 0 <= low <= passes / max(runs, 1)


@given(counts)
def test_the_upper_bound_is_that_of_failures(count: tuple[int, int]) -> None:
    passes, runs = count
    assert upper_bound(passes, runs, 0.95) == 1 - lower_bound(runs - passes, runs, 0.95)
    assert upper_bound(passes, runs, 0.95) >= passes / max(runs, 1)


@given(counts)
def test_a_pass_raises_it_and_a_failure_lowers_it(count: tuple[int, int]) -> None:
    passes, runs = count
    low = lower_bound(passes, runs, 0.95)
    assert lower_bound(passes + 1, runs + 1, 0.95) >= low - 1e-6
    assert lower_bound(passes, runs + 1, 0.95) <= low + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.8, 0.9])
def test_one_who_looks_every_run_is_wrong_no_more_often_than_said(rate: float) -> None:
    passed = np.random.default_rng(7).random((1000, 150)) < rate
    wrong = 0
    for history in passed.cumsum(axis=1):
        wrong += any(lower_bound(int(passes), runs, 0.9) > rate for runs, passes in enumerate(history, 1))
    # A tenth of 1,000 and, as chance may add to it, three standard deviations.
    assert 0 < wrong <= 100 + 3 * (1000 * 0.1 * 0.9) ** 0.5


@pytest.mark.slow
def test_the_exact_bound_would_be_wrong_more_often() -> None:
    """An interval for a fixed number of runs does not hold for someone who looks at it after every run."""
    passed = np.random.default_rng(7).random((300, 150)) < 0.8
    passes, runs = passed.cumsum(axis=1), np.arange(1, 151)
    # Clopper and Pearson's lower bound; without any pass it is 0.
    exact = beta.ppf(0.1, np.maximum(passes, 1), runs - passes + 1) * (passes > 0)
    assert (exact > 0.8).any(axis=1).sum() > 60


@pytest.mark.parametrize(("passes", "runs", "confidence"), [(2, 1, 0.9), (-1, 1, 0.9), (1, 1, 1.0), (1, 1, 0.0)])
def test_what_cannot_be_is_refused(passes: int, runs: int, confidence: float) -> None:
    with pytest.raises(ValueError, match="passes of"):
        lower_bound(passes, runs, confidence)
