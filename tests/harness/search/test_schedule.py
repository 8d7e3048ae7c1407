"""Tests of which run is made next, on synthetic histories."""

import random
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.diagnosis.rules import load_signatures
from harness.evidence.outcome.diagnoses import EndDiagnosis, ResultDiagnosis
from harness.evidence.verdicts.rates import lower_bound, runs_to_show
from harness.evidence.verdicts.totals import Life, Totals
from harness.search.goal import Goal
from harness.search.schedule import (
    OF_THE_PRESET,
    OF_THE_STACK,
    Candidate,
    End,
    Next,
    Tally,
    in_random_order,
    next_run,
    status_of,
    straight_passes,
)

# A low rate and a low confidence, so that a few runs are enough.
FIND = Goal(rate=0.5, confidence=0.9)
SETTLE = replace(FIND, every=True)
A, B, C = (Candidate(name, "s", name, "cpu") for name in "abc")
FRESH = Tally()

counts = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda both: Tally(both[0], sum(both)))


def cell(stack: str, preset: str, devices: int = 1) -> Candidate:
    return Candidate(f"{stack}-{preset}", stack, preset, "gfx1100", devices)


def failed(*diagnoses: str, passes: int = 0) -> Tally:
    return Tally(passes, passes + len(diagnoses), {name: diagnoses.count(name) for name in diagnoses})


def chosen(decision: Next | End) -> Candidate:
    assert isinstance(decision, Next), decision
    return decision.candidate


def carried_out(
    candidates: list[Candidate], goal: Goal, passes: Callable[[Candidate], bool], seed: int = 1, most: int = 10_000
) -> tuple[End, dict[Candidate, Tally], list[Candidate]]:
    """Make runs until nothing is left to run; return the end, the tallies and the candidate of each run in order."""
    tallies: dict[Candidate, Tally] = {}
    made: list[Candidate] = []
    while isinstance(decision := next_run(candidates, tallies, goal, seed), Next):
        made.append(one := decision.candidate)
        assert len(made) <= most, "it never ends"
        before = tallies.get(one, FRESH)
        tallies[one] = Tally(before.passes + passes(one), before.runs + 1)
    return decision, tallies, made


@given(
    failures=st.integers(0, 40), rate=st.sampled_from([0.1, 0.5, 0.9]), confidence=st.sampled_from([0.6, 0.95, 0.999])
)
@settings(max_examples=30, deadline=None)
def test_the_fewest_runs_that_show_a_rate(failures: int, rate: float, confidence: float) -> None:
    enough = runs_to_show(failures, rate, confidence)
    assert lower_bound(enough - failures, enough, confidence) > rate
    assert enough == failures + 1 or lower_bound(enough - 1 - failures, enough - 1, confidence) <= rate


def test_thirty_three_straight_passes_show_nine_in_ten() -> None:
    assert runs_to_show(0, 0.9, 0.95) == 33


@given(tally=counts)
@settings(max_examples=60, deadline=None)
def test_only_the_bound_makes_a_cell_known_good(tally: Tally) -> None:
    shown = lower_bound(tally.passes, tally.runs, FIND.of_each) > FIND.rate
    assert (status_of(tally, FIND) == "known-good") == shown
    assert (status_of(tally, SETTLE) == "known-good") == shown


@given(tally=counts)
@settings(max_examples=60, deadline=None)
def test_only_the_bound_rules_a_cell_out(tally: Tally) -> None:
    below = 1 - lower_bound(tally.failures, tally.runs, SETTLE.confidence) < SETTLE.rate
    assert (status_of(tally, SETTLE) == "ruled-out") == below


def test_the_best_of_many_has_to_show_more() -> None:
    among = replace(FIND, among=40)
    assert among.of_each == pytest.approx(1 - 0.1 / 40)
    tally = Tally(runs_to_show(0, 0.5, 0.9), runs_to_show(0, 0.5, 0.9))
    assert status_of(tally, FIND) == "known-good"
    assert status_of(tally, among) == "open"
    # Where every cell is settled, the verdict on each is a claim of its own, held to no more.
    assert status_of(tally, replace(SETTLE, among=40)) == "known-good"


def test_one_that_always_passes_is_found_in_no_more_runs_than_it_takes() -> None:
    end, tallies, made = carried_out([A, B, C], replace(FIND, among=3), lambda _: True)
    assert end == End("reached")
    assert len(made) == runs_to_show(0, 0.5, 1 - 0.1 / 3)
    assert len(tallies) == 1


def test_a_failure_sends_the_search_to_another() -> None:
    tallies = {A: Tally(3, 4)}
    assert chosen(next_run([A, B], tallies, FIND, 1)) == B
    assert chosen(next_run([A, B], {A: Tally(3, 3)}, FIND, 1)) == A


def test_hopeless_ones_are_dropped_and_the_end_is_said() -> None:
    end, tallies, made = carried_out([A, B, C], FIND, lambda _: False)
    assert end == End("exhausted")
    assert {status_of(tally, FIND) for tally in tallies.values()} == {"hopeless"}
    assert len(made) < 30


def test_what_shares_a_failing_stack_or_preset_comes_later() -> None:
    same_stack, same_preset, neither = cell("s1", "p2"), cell("s2", "p1"), cell("s2", "p2")
    broken = cell("s1", "p1")
    for cause, later, sooner in (
        ("missing-arch", same_stack, (same_preset, neither)),
        ("install", same_stack, (same_preset, neither)),
        ("preset", same_preset, (same_stack, neither)),
        ("crash", same_stack, (neither,)),
        ("crash", same_preset, (neither,)),
    ):
        for first in sooner:
            for seed in range(5):
                tallies = {broken: failed(cause, cause)}
                assert chosen(next_run([broken, later, first], tallies, FIND, seed)) == first, (cause, first)


def test_a_fault_of_the_stack_weighs_more_than_one_that_may_be_the_presets() -> None:
    crashed, without_code = cell("s1", "p1"), cell("s2", "p2")
    tallies = {crashed: failed("crash"), without_code: failed("missing-arch")}
    choice = next_run([crashed, without_code, cell("s1", "p3"), cell("s2", "p4")], tallies, FIND, 1)
    assert chosen(choice).stack == "s1"


def test_a_sibling_of_what_passes_is_tried_before_a_stranger() -> None:
    # The cell that passed has failed since, so both of the untried cells are more promising.
    tallies = {cell("s1", "p1"): failed("crash", "crash", passes=20), cell("s2", "p2"): failed("crash", "crash")}
    choice = next_run([*tallies, cell("s1", "p3"), cell("s2", "p4")], tallies, replace(FIND, rate=0.95), 1)
    assert chosen(choice) == cell("s1", "p3")


@pytest.mark.parametrize("goal", [FIND, SETTLE])
def test_what_uses_several_gpus_comes_after_all_of_the_rest_is_known(goal: Goal) -> None:
    alone, both = cell("s", "p1"), cell("s", "p2", devices=2)
    _, _, made = carried_out([both, alone], goal, lambda _: False)
    assert made == sorted(made, key=lambda one: one.devices)
    assert {one.devices for one in made} == {1, 2}


def test_equals_are_tried_in_the_order_of_the_seed_and_nothing_else() -> None:
    many = [Candidate(f"c{n}", f"s{n}", f"p{n}", "cpu") for n in range(6)]
    first = {seed: chosen(next_run(many, {}, FIND, seed)) for seed in range(40)}
    assert set(first.values()) == set(many)
    assert first == {seed: chosen(next_run(many[::-1], {}, FIND, seed)) for seed in range(40)}
    assert first == {seed: in_random_order(many, seed)[0] for seed in range(40)}


@pytest.mark.parametrize("seed", range(4))
def test_of_equals_a_plain_one_is_found_first(seed: int) -> None:
    candidates = [cell(stack, preset) for stack in "abc" for preset in ("no-sdma", "plain", "no-hipblaslt")]
    assert chosen(next_run(candidates, {}, FIND, seed)).preset == "plain"


def test_all_are_settled_both_ways() -> None:
    end, tallies, _ = carried_out([A, B, C], SETTLE, lambda one: one != B)
    assert end == End("reached")
    assert {one.cell: status_of(tally, SETTLE) for one, tally in tallies.items()} == {
        "a": "known-good",
        "b": "ruled-out",
        "c": "known-good",
    }


def test_each_is_tried_once_and_then_what_takes_the_fewest_runs_is_settled() -> None:
    goal = replace(SETTLE, rate=0.9, confidence=0.9)
    assert chosen(next_run([A, B], {A: Tally(25, 25)}, goal, 1)) == B
    # B lacks one pass to be above the line, A two failures to be below it; C, with some of both, needs many runs.
    assert chosen(next_run([A, B, C], {A: Tally(0, 1), B: Tally(25, 25), C: Tally(9, 10)}, goal, 1)) == B
    assert chosen(next_run([A, B, C], {A: Tally(0, 1), B: Tally(20, 20), C: Tally(9, 10)}, goal, 1)) == A
    assert chosen(next_run([B, C], {B: Tally(1, 1), C: Tally(9, 10)}, goal, 1)) == B


def test_the_time_left_until_all_are_settled_is_that_of_each() -> None:
    goal = replace(SETTLE, rate=0.9, confidence=0.9)
    tallies = {A: Tally(20, 20), B: Tally(0, 1)}
    passes, failures = runs_to_show(0, 0.9, 0.9) - 20, runs_to_show(0, 0.1, 0.9) - 1
    told = next_run([A, B], tallies, goal, 1, {"a": 100.0, "b": 1.0})
    assert told == Next(B, passes + failures, passes * 100.0 + failures * 1.0, failures)


def test_a_rate_at_the_line_is_dropped() -> None:
    turns = {A: 0}

    def alternating(one: Candidate) -> bool:
        turns[one] += 1
        return turns[one] % 2 == 0

    end, tallies, _ = carried_out([A], SETTLE, alternating)
    assert end == End("exhausted")
    assert status_of(tallies[A], SETTLE) == "undecided"


@pytest.mark.slow
@given(rates=st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_search_ends_and_says_what_is_true_of_its_tallies(rates: list[float], seed: int) -> None:
    chance = random.Random(seed)
    candidates = [Candidate(f"c{n}", f"s{n % 2}", f"p{n}", "cpu") for n in range(len(rates))]
    true = dict(zip(candidates, rates, strict=True))
    for goal in (replace(FIND, among=len(rates)), SETTLE):
        end, tallies, _ = carried_out(candidates, goal, lambda one: chance.random() < true[one], seed)
        stood = [status_of(tallies.get(one, FRESH), goal) for one in candidates]
        assert "open" not in stood or (not goal.every and "known-good" in stood)
        reached = not {"undecided", "hopeless"} & set(stood) if goal.every else "known-good" in stood
        assert (end.why == "reached") == reached


def test_trainings_of_milliseconds_take_no_memory_for_all_the_runs_they_need() -> None:
    goal, begun = replace(FIND, mtbf_hours=3.0), Totals(5, 5, 0, (Life(1e-6),) * 5, 1)
    tracemalloc.start()
    try:
        decided = next_run([A, B], {A: Tally(5, 5, totals=begun)}, goal, 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(decided, Next)
    assert straight_passes(Tally(5, 5, totals=begun), goal) > 10**6
    assert most < 20e6


def test_the_time_left_is_reported_where_the_time_of_a_run_is_known() -> None:
    left = straight_passes(FRESH, FIND)
    assert next_run([A], {}, FIND, 1) == Next(A, left, None, left)
    assert next_run([A], {}, FIND, 1, {"a": 60.0}) == Next(A, left, left * 60.0, left)
    # The time of a cell that was not run here is estimated from the other cells.
    assert next_run([A], {}, FIND, 1, {"b": 30.0, "c": 10.0, "d": 20.0}) == Next(A, left, left * 20.0, left)


def test_a_run_that_does_not_fit_the_budget_is_not_begun() -> None:
    seconds: Mapping[str, float] = {"a": 100.0, "b": 10.0}
    passing = {A: Tally(3, 3)}
    assert chosen(next_run([A, B], passing, FIND, 1, seconds, 101.0)) == A
    assert chosen(next_run([A, B], passing, FIND, 1, seconds, 99.0)) == B
    assert next_run([A, B], passing, FIND, 1, seconds, 9.0) == End("out-of-time")
    # If nothing is known of the time of a run, one is begun while any time is left.
    assert chosen(next_run([A], {}, FIND, 1, {}, 1.0)) == A
    assert next_run([A], {}, FIND, 1, {}, 0.0) == End("out-of-time")
    # A goal that is reached needs no more time.
    shown = {A: Tally(50, 50)}
    assert next_run([A], shown, FIND, 1, seconds, 0.0) == End("reached")


def test_nothing_to_choose_from_is_an_end() -> None:
    assert next_run([], {}, FIND, 1) == End("exhausted")


LASTING = replace(FIND, mtbf_hours=3.0, boots=2)


def lasted(hours: float, runs: int = 20, boots: int = 2, failures: int = 0, *, here: bool = True) -> Tally:
    """Return the tally of a candidate whose runs all started and trained for `hours` in all."""
    lives = (Life(hours / runs),) * runs
    totals = Totals(runs, runs, failures, lives, boots)
    return Tally(runs - failures, runs, totals=totals, on_this_boot=here)


def test_hours_are_needed_too_and_runs_are_made_until_there_are_enough() -> None:
    # Without a failure, 90 % confidence takes 2.652 times the MTBF: 7.96 hours for three.
    assert status_of(lasted(7.9), LASTING) == "open"
    assert status_of(lasted(8.0), LASTING) == "known-good"
    assert straight_passes(lasted(6.0), LASTING) == 7
    # If nothing is known of the hours of a run, only starts are counted.
    assert straight_passes(Tally(20, 20), LASTING) == 0


def test_all_but_another_boot_ends_a_search_and_is_finished_after_it() -> None:
    once = lasted(8.0, boots=1)
    assert status_of(once, LASTING) == "another-boot"
    assert next_run([A, B], {A: once}, LASTING, 1) == End("another-boot")
    assert next_run([A], {A: once}, replace(LASTING, every=True), 1) == End("another-boot")
    # After the boot, one run is enough.
    booted = replace(once, on_this_boot=False)
    assert status_of(booted, LASTING) == "open"
    decision = next_run([A], {A: booted}, LASTING, 1)
    assert isinstance(decision, Next)
    assert (decision.candidate, decision.runs_left) == (A, 1)


def test_a_cell_that_does_not_last_is_dropped() -> None:
    """Six failures in one hour are too many if one in three hours is allowed."""
    assert status_of(lasted(1.0, failures=6), LASTING) == "hopeless"
    assert status_of(lasted(30.0, failures=6), LASTING) == "open"


def test_a_cell_that_is_short_of_hours_is_not_undecided_for_its_many_runs() -> None:
    few = Tally(70, 80, totals=Totals(80, 80, 1, (Life(0.1),) * 80, 2))
    assert status_of(replace(few, totals=None), FIND) == "known-good"
    assert status_of(few, LASTING) == "open"


def test_faults_of_a_stack_or_preset_are_classes_or_diagnoses_that_there_are() -> None:
    known = {*load_signatures().classes, *get_args(EndDiagnosis), *get_args(ResultDiagnosis)}
    assert sorted((OF_THE_STACK | OF_THE_PRESET) - known) == []


def test_of_every_diagnosis_it_is_said_whether_another_preset_may_help() -> None:
    """A new diagnosis belongs in OF_THE_STACK if no preset can help; if not, the stack's other presets are tried."""
    may_help = {"app-error", "crash", "disk-limit", "incomplete-result", "injected-fault", "memory-grows"}
    may_help |= {"memory-limit", "model-damaged", "model-does-not-load", "no-progress", "no-result", "not-begun"}
    may_help |= {"not-finite", "out-of-memory", "refused", "time-limit", "unhealthy-gpu", "unkillable"}
    may_help |= {"verification-failed", "work-folder", "wrong-data", "wrong-result", "wrong-workload"}
    diagnoses = {*get_args(EndDiagnosis), *get_args(ResultDiagnosis)}
    assert diagnoses == may_help | (OF_THE_STACK & diagnoses)
    assert not may_help & OF_THE_STACK
