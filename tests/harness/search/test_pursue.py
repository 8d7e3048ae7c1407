"""Tests of running candidates until a goal is reached; the results of their runs are synthetic."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from harness.evidence.verdicts.rates import runs_to_show
from harness.evidence.verdicts.totals import Totals
from harness.search.goal import Goal
from harness.search.pursue import UNCOUNTED, Pursuit, pursue
from harness.search.schedule import Candidate, Tally

FIND = Goal(rate=0.4, confidence=0.7)
A, B = (Candidate(cell, "stack", cell, "gfx1100") for cell in "ab")


@dataclass
class ScriptedCandidateRunner:
    """A runner of candidates: `passes` says how a run ends, and None that it does not count.

    The first run of each candidate only makes the candidate ready.
    """

    passes: Callable[[Candidate], bool | None]
    left: list[Candidate] = field(default_factory=lambda: [A, B])
    ready: set[Candidate] = field(default_factory=set)
    tallies: dict[Candidate, Tally] = field(default_factory=dict)
    ran: list[Candidate] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    shown: Totals | None = None

    def candidates(self) -> list[Candidate]:
        return list(self.left)

    def all_candidates(self) -> list[Candidate]:
        return [A, B]

    def known(self) -> tuple[dict[Candidate, Tally], dict[str, float]]:
        return dict(self.tallies), {}

    def run(self, candidate: Candidate, seconds_left: float | None, most: int, spare: float | None) -> bool:
        if candidate not in self.ready:
            self.ready.add(candidate)
            return False
        self.ran.append(candidate)
        passed, before = self.passes(candidate), self.tallies.get(candidate, Tally())
        if passed is not None:
            self.tallies[candidate] = Tally(before.passes + passed, before.runs + 1, totals=self.shown)
        return True

    def leave_out(self, candidate: Candidate, why: str) -> None:
        self.left.remove(candidate)
        self.reasons.append(why)


def pursued(goal: Goal, runner: ScriptedCandidateRunner, time_left: float | None = None) -> Pursuit:
    return pursue(goal, 7, runner, lambda: time_left)


def test_one_that_passes_is_found_in_as_few_runs_as_show_it() -> None:
    runner = ScriptedCandidateRunner(lambda _: True)
    found = pursued(FIND, runner)
    assert (found.why, found.left_out) == ("reached", False)
    assert len(runner.ran) == len(set(runner.ran)) * runs_to_show(0, FIND.rate, FIND.confidence)


def test_runs_that_do_not_count_end_and_leave_the_rest_to_be_settled() -> None:
    runner = ScriptedCandidateRunner(lambda one: None if one == A else True)
    found = pursued(replace(FIND, every=True), runner)
    assert runner.ran.count(A) == UNCOUNTED
    assert len(runner.reasons) == 1
    # B is settled, but the goal to settle every candidate is not reached, because A was left out.
    assert (found.why, found.left_out) == ("exhausted", True)
    assert (found.tallies[A], found.tallies[B].failures) == (Tally(), 0)


def test_a_run_that_counts_begins_the_count_of_others_again() -> None:
    answers = iter([None, None, True, None, None, True] * 9)
    runner = ScriptedCandidateRunner(lambda _: next(answers), left=[A])
    assert pursued(FIND, runner).why == "reached"
    assert runner.reasons == []


@pytest.mark.parametrize("every", [True, False])
def test_without_time_nothing_is_begun(every: bool) -> None:
    runner = ScriptedCandidateRunner(lambda _: True)
    assert pursued(replace(FIND, every=every), runner, time_left=0.0).why == "out-of-time"
    assert runner.ran == []


def test_runs_that_pass_but_are_not_verified_come_to_an_end_that_says_so() -> None:
    runner = ScriptedCandidateRunner(lambda _: True, left=[A], shown=Totals())
    found = pursued(FIND, runner)
    assert (found.why, runner.ran.count(A)) == ("exhausted", UNCOUNTED)
    assert "not verified (`matrix status a` says why)" in runner.reasons[0]
