"""Tests of the search for the lowest level at which a run still fails, on synthetic histories."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from harness.search.least_failing import BudgetSpentError, LeastFailing, least_failing


def run_search(threshold: int, rate: float, seed: int, levels: int = 100) -> tuple[LeastFailing, int]:
    random, asked = Random(seed), list[int]()

    def fails(level: int) -> int | None:
        asked.append(level)
        return level if level >= threshold and random.random() < rate else None

    return least_failing(levels, fails), len(asked)


@pytest.mark.parametrize(("rate", "most"), [(1.0, 12), (0.9, 25), (0.5, 60)])
def test_the_least_level_is_found(rate: float, most: int) -> None:
    found = [run_search(Random(seed).randrange(100), rate, seed) for seed in range(60)]
    right = [one.level == Random(seed).randrange(100) for seed, (one, _) in enumerate(found)]
    assert sum(right) >= 55
    assert sorted(runs for _, runs in found)[47] <= most
    assert sum(abs(one.rate - rate) < 0.25 for one, _ in found) >= 45


def test_what_never_fails_again_is_not_found() -> None:
    assert Counter(run_search(100, 1.0, seed)[0].level for seed in range(20)) == {None: 20}


def test_a_good_guess_saves_runs() -> None:
    asked: list[int] = []

    def fails(level: int) -> int | None:
        asked.append(level)
        return 617 if level >= 617 else None

    guess = [0.5 / 1001] * 1001
    guess[617] += 0.5
    assert least_failing(1000, fails, prior=guess).level == 617
    guessed = len(asked)
    assert least_failing(1000, fails).level == 617
    assert guessed <= 6 < len(asked) - guessed


def test_how_far_a_failed_run_came_is_believed() -> None:
    """A run for a higher level that fails at a lower one shows that the lower level fails, too."""
    assert least_failing(50, lambda level: min(level, 7) if level >= 7 else None).level == 7


def test_a_spent_budget_ends_it() -> None:
    def fails(_: int) -> int | None:
        raise BudgetSpentError

    with pytest.raises(BudgetSpentError):
        least_failing(5, fails)


@pytest.mark.parametrize("call", [lambda f: least_failing(0, f), lambda f: least_failing(3, f, prior=[1, 1])])
def test_weights_are_one_for_each_level_and_one_for_none(call: Callable[..., LeastFailing]) -> None:
    with pytest.raises(ValueError, match="levels"):
        call(lambda level: level)
