"""Tests of the search for the smallest part of the data that still fails, on synthetic histories."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from harness.search.smallest_part import Part, SmallestPart, smallest_part

Fails = Callable[[Part], bool]


def run_search(fails: Fails, rate: float, seed: int, chunks: int = 1000) -> SmallestPart:
    random = Random(seed)
    return smallest_part(chunks, lambda part: not (fails(part) and random.random() < rate), 300)


def one_chunk(chunk: int) -> Fails:
    return lambda part: part[0] <= chunk < part[1]


def both(first: int, last: int) -> Fails:
    return lambda part: part[0] <= first and last < part[1]


def test_one_of_a_thousand_that_always_crashes_is_found_in_fifteen_runs() -> None:
    for seed in range(60):
        chunk = Random(f"chunk {seed}").randrange(1000)
        found = run_search(one_chunk(chunk), 1.0, seed)
        assert (found.conclusion, found.part) == ("found", (chunk, chunk + 1))
        assert found.runs <= 15
        assert found.rest_too is (None if chunk == 999 else False)


@pytest.mark.slow
def test_one_of_a_thousand_that_crashes_half_of_the_time_is_found_in_sixty_runs() -> None:
    """Luck decides how many runs a search takes, so the test bounds the median."""
    runs, right = [], 0
    for seed in range(40):
        chunk = Random(f"chunk {seed}").randrange(1000)
        found = run_search(one_chunk(chunk), 0.5, seed)
        right += (found.conclusion, found.part) == ("found", (chunk, chunk + 1))
        runs.append(found.runs)
    assert right >= 37
    assert sorted(runs)[20] <= 60
    assert sum(made <= 60 for made in runs) >= 26


@pytest.mark.parametrize("rate", [1.0, 0.9])
def test_of_two_chunks_that_only_fail_together_both_ends_are_found(rate: float) -> None:
    found = [run_search(both(30, 61), rate, seed, chunks=100) for seed in range(20)]
    assert sum(one.part == (30, 62) for one in found) >= 18


def test_what_fails_with_any_data_is_not_localised() -> None:
    found = [run_search(lambda _: True, 1.0, seed, chunks=100) for seed in range(5)]
    assert Counter(one.conclusion for one in found) == {"not-localised": 5}
    # If failures are random, some part may be named, but mostly with the remark that the rest fails, too.
    flaky = [run_search(lambda _: True, 0.7, seed, chunks=100) for seed in range(30)]
    assert sum(one.rest_too is True for one in flaky) >= 20


def test_it_says_that_another_chunk_fails_as_well() -> None:
    found = run_search(lambda part: one_chunk(20)(part) or one_chunk(70)(part), 1.0, 1, chunks=100)
    assert (found.part, found.rest_too) == ((20, 21), True)


def test_what_never_fails_again_is_not_found() -> None:
    found = run_search(lambda _: False, 1.0, 1)
    assert (found.conclusion, found.part, found.rest_too) == ("not-seen-again", None, None)


def test_a_part_is_no_smaller_than_it_may_be() -> None:
    asked: list[Part] = []

    def run(part: Part) -> bool:
        asked.append(part)
        return not one_chunk(41)(part)

    found = smallest_part(60, run, 100, 3)
    assert found.part == (39, 42)
    assert min(last - first for first, last in asked) >= 3


@pytest.mark.parametrize("chunk", [56, 57, 58])
def test_a_rest_that_is_smaller_than_a_part_may_be_is_not_run(chunk: int) -> None:
    asked: list[Part] = []

    def run(part: Part) -> bool:
        asked.append(part)
        return not one_chunk(chunk)(part)

    found = smallest_part(60, run, 100, 3)
    assert found.part == (chunk - 2, chunk + 1)
    assert found.rest_too is (False if chunk == 56 else None)
    assert min(last - first for first, last in asked) == 3


def test_it_keeps_to_its_budget_and_goes_on_where_it_stopped() -> None:
    history: list[tuple[Part, bool]] = []
    random = Random(5)

    def run(part: Part) -> bool:
        history.append((part, not (one_chunk(17)(part) and random.random() < 0.6)))
        return history[-1][1]

    found = smallest_part(200, run, 150)
    assert found.runs == len(history) <= 150
    replayed = iter(history)

    def again(part: Part) -> bool:
        asked, passed = next(replayed)
        assert asked == part
        return passed

    assert smallest_part(200, again, 150) == found
    replayed = iter(history)
    few = smallest_part(200, again, 5)
    assert (few.conclusion, few.runs) == ("not-enough-runs", 5)


def test_what_is_asked_for_must_be_possible() -> None:
    for chunks, fewest in ((0, 1), (2, 3), (2, 0)):
        with pytest.raises(ValueError, match="chunks"):
            smallest_part(chunks, lambda _: True, 10, fewest)
