"""The simulated evening, made small: what it claims on its page holds on a few seeds."""

import pytest

from benchmarks.evening.__main__ import ANSWER_GB, ANSWER_WITHIN
from benchmarks.evening.simulated import BUDGET, Evening, evening, in_turn
from benchmarks.evening.worlds import WORLDS

SEEDS = (0, 1)
# Each stack costs the hour after which it hangs, and nine of those do not fit.
TOO_LONG = {"all hangs after an hour"}
# What these runs may take beyond the budget: the last one that was begun.
OVERTIME = 1800.0


@pytest.fixture(scope="module")
def evenings() -> dict[str, list[Evening]]:
    return {name: [evening(name, seed) for seed in SEEDS] for name in WORLDS}


def test_nothing_is_called_good_that_is_not(evenings: dict[str, list[Evening]]) -> None:
    assert not any(one.wrong for made in evenings.values() for one in made)


def test_the_answer_is_right_where_the_time_is_enough_for_it(evenings: dict[str, list[Evening]]) -> None:
    assert {name for name, made in evenings.items() if not all(one.right for one in made)} == TOO_LONG


def test_it_takes_no_longer_than_the_budget(evenings: dict[str, list[Evening]]) -> None:
    assert all(one.seconds <= BUDGET + OVERTIME for made in evenings.values() for one in made)


def test_the_first_answer_takes_one_download(evenings: dict[str, list[Evening]]) -> None:
    for one in evenings["only no-p2p helps"]:
        assert (one.one_gpu_seconds or BUDGET) < ANSWER_WITHIN
        assert (one.one_gpu_gb or ANSWER_GB) < ANSWER_GB


def test_the_same_seed_is_the_same_evening() -> None:
    assert evening("one stack works on two GPUs", 3) == evening("one stack works on two GPUs", 3)


def test_in_turn_no_cell_is_run_for_long_enough() -> None:
    assert not in_turn("only no-p2p helps", 0).right
