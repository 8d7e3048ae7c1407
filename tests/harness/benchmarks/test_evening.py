"""The simulated evening, made small: what it claims on its page holds on a few seeds."""

import os

import pytest

from benchmarks.evening.__main__ import ANSWER_GB, ANSWER_WITHIN
from benchmarks.evening.clock import HOUR
from benchmarks.evening.simulated import BUDGET, Evening, evening, in_turn
from benchmarks.evening.worlds import WORLDS

SEEDS = (0, 1) if os.environ.get("LONG") else (0,)
# What these runs may take beyond the budget: the last one that was begun.
OVERTIME = 1800.0


@pytest.fixture(scope="module")
def evenings() -> dict[str, list[Evening]]:
    return {name: [evening(name, seed) for seed in SEEDS] for name in WORLDS}


@pytest.mark.slow
def test_in_every_world_the_answer_is_right_and_within_the_budget(evenings: dict[str, list[Evening]]) -> None:
    for name, made in evenings.items():
        for one in made:
            assert (one.wrong, one.right, one.seconds <= BUDGET + OVERTIME) == (False, True, True), name


@pytest.mark.slow
@pytest.mark.parametrize("world", [name for name in WORLDS if name != "only ROCm 6.x trains"])
def test_the_first_answer_is_there_in_time(world: str, evenings: dict[str, list[Evening]]) -> None:
    for one in evenings[world]:
        assert (one.one_gpu_seconds or BUDGET) < ANSWER_WITHIN
        assert (one.one_gpu_gb or ANSWER_GB) < ANSWER_GB


def test_a_gpu_that_cannot_be_reset_is_lost_and_nothing_is_called_good_on_both() -> None:
    made = evening("no reset: only ROCm 7.x trains", 0)
    assert (made.right, made.wrong) == (False, False)
    assert made.seconds < HOUR


def test_with_a_screen_on_one_gpu_the_other_is_answered_for() -> None:
    assert evening("a screen on one GPU: only notes-stable trains", 0).right


def test_where_few_stacks_have_room_those_that_the_driver_supports_are_tried() -> None:
    assert evening("old driver, little disk", 0).right


def test_the_same_seed_is_the_same_evening() -> None:
    assert evening("one stack works on two GPUs", 3) == evening("one stack works on two GPUs", 3)


def test_in_turn_no_cell_is_run_for_long_enough() -> None:
    assert not in_turn("only no-p2p helps", 0).right
