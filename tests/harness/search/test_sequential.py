"""Tests of statistical tests that may be evaluated after every run."""

from collections.abc import Iterable
from math import exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.search.sequential import BinomialCount, PairedTest, log_ratio

RATES = st.floats(0, 1)


def after(pairs: Iterable[tuple[bool, bool]]) -> PairedTest:
    test = PairedTest()
    for one, other in pairs:
        test = test.add(one, other)
    return test


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30), RATES)
def test_evidence_against_equal_rates_never_grows_on_average(pairs: list[tuple[bool, bool]], rate: float) -> None:
    """The next pair has equal rates, whatever they are and whatever pairs came before."""
    before = after(pairs)
    expected = sum(
        (rate if one else 1 - rate) * (rate if other else 1 - rate) * exp(before.add(one, other).log_evidence)
        for one in (True, False)
        for other in (True, False)
    )
    assert expected <= exp(before.log_evidence) * (1 + 1e-9)


def test_equal_rates_are_seldom_refuted_and_different_ones_always() -> None:
    random = Random(7)
    wrong = sum(ever_shows_difference(random, 0.8, 0.8, pairs=150) for _ in range(400))
    assert wrong <= 0.05 * 400
    assert all(ever_shows_difference(random, 0.95, 0.4, pairs=150) for _ in range(100))


def ever_shows_difference(random: Random, one: float, other: float, pairs: int) -> bool:
    """Return whether the test shows a difference after any of the pairs."""
    test = PairedTest()
    for _ in range(pairs):
        test = test.add(random.random() < one, random.random() < other)
        if test.shows_difference(0.05):
            return True
    return False


def test_four_pairs_that_all_differ_are_enough() -> None:
    assert not after([(True, False)] * 3).shows_difference(0.05)
    assert after([(True, False)] * 4).shows_difference(0.05)
    assert after([(True, True)] * 100).log_evidence == 0


def test_a_ratio_is_that_of_the_likelihoods() -> None:
    assert log_ratio(BinomialCount(3, 5), 0.9, 0.2) == pytest.approx(log((0.9**3 * 0.1**2) / (0.2**3 * 0.8**2)))
    assert log_ratio(BinomialCount(), 0.9, 0.2) == 0


@given(st.integers(0, 50), st.integers(0, 50))
def test_an_estimated_rate_is_never_certain(passes: int, failures: int) -> None:
    assert 0 < BinomialCount(passes, passes + failures).rate < 1
    assert BinomialCount(passes, passes + failures) + BinomialCount(1, 2) == BinomialCount(
        passes + 1, passes + failures + 2
    )
