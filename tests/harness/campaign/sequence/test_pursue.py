"""Tests of campaigns that are decided run by run on two GPUs; the records are real, the runs are not."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PendingRun, Plan, PlannedRun, make_plan
from harness.campaign.campaign import Campaign, begin_or_continue
from harness.campaign.gpus import unhealthy as unhealthy_module
from harness.campaign.planning.tallies import Tallies
from harness.campaign.runner import Runner
from harness.campaign.sequence import pursue as pursue_module
from harness.campaign.sequence.pursue import pursue_goal
from harness.environments.capabilities import Capabilities
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.verdicts.counting import NOT_BEGUN, REFUSED
from harness.evidence.verdicts.rates import runs_to_show
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import family_of, options_of
from harness.matrix.workloads import Workload
from harness.search.goal import Goal
from harness.search.pursue import UNCOUNTED, Pursuit
from tests.harness.pretending import FakeRun, RecordingDisplay, RecordWritingBench

PLAIN, MORE, OTHER_STACK = "rocm6.3-torch2.9.1-plain", "rocm6.3-torch2.9.1-no-sdma", "rocm7.0-torch2.10.0-plain"
SECONDS = 10.0
MakeRecord = Callable[..., Record]


class Sought(RecordWritingBench):
    """A bench whose runs leave records; `outcome_of` returns the outcome and the diagnosis of a run."""

    outcome_of: Callable[[FakeRun], tuple[str, str | None]]
    workload: Workload

    def run_cell(self, run: Any, *_: object) -> Any:
        planned = run.planned
        outcome, diagnosis = self.outcome_of(run)
        self.made.append((planned.cell.id, planned.gpus))
        started = 1e9 + SECONDS * len(self.made)
        family = family_of(options_of(self.workload), smoke_test=self.workload.smoke_test)
        about = {"family": family, "started": started}
        return self.leave(run, outcome, diagnosis, about, {"finished": started + SECONDS})


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, matrix: Matrix, make_record: MakeRecord) -> Sought:
    sought = Sought.on(tmp_path, host)
    sought.data = tmp_path / "merged.csv"
    sought.data.write_text("bars")
    sought.make_record, sought.workload = make_record, matrix.workloads["quick"]
    sought.outcome_of = lambda _: ("completed", None)
    return sought


FIND = Goal(rate=0.4, confidence=0.7)


def planned(bench: Sought, matrix: Matrix, goal: Goal, *cells: str, side_by_side: bool = False) -> Plan:
    host = Capabilities(bench.gpus, "process", frozenset({"3.11"}), None)
    chosen = [matrix.cells[cell] for cell in cells]
    return make_plan(chosen, bench.workload, 1, host, {}, named=True, goal=goal, side_by_side=side_by_side)


def pursued(
    plan: Plan, goal: Goal, campaign: Campaign, bench: Sought, matrix: Matrix, display: RecordingDisplay
) -> Pursuit:
    runner = Runner(bench, plan.workload, display, campaign.id)
    return pursue_goal(plan, goal, campaign, runner, Tallies(plan, bench, matrix))


def searched(bench: Sought, matrix: Matrix, goal: Goal, *cells: str) -> tuple[Pursuit, RecordingDisplay, Campaign]:
    plan, display = planned(bench, matrix, goal, *cells), RecordingDisplay()
    with begin_or_continue(plan, bench) as (campaign, _):
        found = pursued(plan, goal, campaign, bench, matrix, display)
    return found, display, campaign


def has_ended(campaign: Campaign) -> bool:
    return (campaign.results.folder / "campaigns" / f"{campaign.id}.ended").exists()


def test_both_gpus_are_used_in_turn_and_their_runs_count_together(bench: Sought, matrix: Matrix) -> None:
    found, display, campaign = searched(bench, matrix, FIND, PLAIN)
    needed = runs_to_show(0, FIND.rate, FIND.confidence)
    assert found.why == "reached"
    assert [gpus for _, gpus in bench.made] == [(0,), (1,), (0,)][:needed]
    (tally,) = found.tallies.values()
    assert (tally.passes, tally.runs) == (needed, needed)
    assert found.seconds == {PLAIN: SECONDS}
    assert display.problems == []
    assert has_ended(campaign)


@pytest.mark.parametrize(("rate", "rounds"), [(0.7, [2, 2]), (0.6, [2, 1])])
def test_runs_of_the_chosen_cell_go_side_by_side_as_far_as_they_are_needed(
    rate: float, rounds: list[int], bench: Sought, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal, sizes = replace(FIND, rate=rate), list[int]()
    assert runs_to_show(0, rate, goal.confidence) == sum(rounds)

    def one_after_the_other(runner: Runner, pending: Sequence[PendingRun], left: float | None) -> list[Any]:
        assert [one.planned.gpus for one in pending] == [(0,), (1,)]
        sizes.append(len(pending))
        return [runner.run([one], left) for one in pending]

    monkeypatch.setattr(pursue_module, "run_together", one_after_the_other)
    plan = planned(bench, matrix, goal, PLAIN, side_by_side=True)
    with begin_or_continue(plan, bench) as (campaign, _):
        found = pursued(plan, goal, campaign, bench, matrix, RecordingDisplay())
    (tally,) = found.tallies.values()
    assert (found.why, tally.runs, sizes) == ("reached", sum(rounds), [many for many in rounds if many > 1])


def test_what_was_found_before_is_not_run_again(bench: Sought, matrix: Matrix) -> None:
    _, _, first = searched(bench, matrix, FIND, PLAIN, MORE)
    before = list(bench.made)
    found, _, second = searched(bench, matrix, FIND, PLAIN, MORE)
    assert (found.why, bench.made) == ("reached", before)
    assert first.id != second.id


def test_what_fails_for_its_stack_is_left_for_another_stack(bench: Sought, matrix: Matrix) -> None:
    def outcome_of(run: FakeRun) -> tuple[str, str | None]:
        return ("completed", None) if run.planned.cell.id == OTHER_STACK else ("failed", "wrong-stack")

    bench.outcome_of = outcome_of
    found, _, _ = searched(bench, matrix, FIND, PLAIN, MORE, OTHER_STACK)
    assert found.why == "reached"
    ran = Counter(cell for cell, _ in bench.made)
    assert ran[PLAIN] + ran[MORE] <= 1
    (diagnoses,) = {str(tally.diagnoses) for tally in found.tallies.values() if tally.failures} or {""}
    assert diagnoses in ("", "Counter({'wrong-stack': 1})")


def test_every_cell_is_settled(bench: Sought, matrix: Matrix) -> None:
    goal = replace(FIND, every=True)
    bench.outcome_of = lambda run: ("completed", None) if run.planned.cell.id == PLAIN else ("hung", "no-progress")
    found, _, _ = searched(bench, matrix, goal, PLAIN, MORE)
    assert found.why == "reached"
    assert {one.cell: (tally.passes > 0, tally.failures > 0) for one, tally in found.tallies.items()} == {
        PLAIN: (True, False),
        MORE: (False, True),
    }


def test_a_killed_search_goes_on_and_overwrites_nothing(bench: Sought, matrix: Matrix) -> None:
    goal = replace(FIND, rate=0.7)

    class Killed(Exception):  # noqa: N818
        pass

    def dies_at_the_third(run: FakeRun) -> tuple[str, str | None]:
        if len(bench.made) == 2:
            raise Killed
        return "completed", None

    bench.outcome_of = dies_at_the_third
    with pytest.raises(Killed):
        searched(bench, matrix, goal, PLAIN)
    bench.outcome_of = lambda _: ("completed", None)
    plan = planned(bench, matrix, goal, PLAIN)
    with begin_or_continue(plan, bench) as (campaign, continued):
        assert continued
        pursued(plan, goal, campaign, bench, matrix, RecordingDisplay())
    ids = [record.intent.run_id for record in bench.results.records()]
    assert len(ids) == len(set(ids)) == len(bench.made) == runs_to_show(0, 0.7, FIND.confidence)
    assert {run_id.removeprefix(campaign.id) for run_id in ids} >= {
        f"-{PLAIN}-gpu{gpu}-{n}" for gpu in (0, 1) for n in (1, 2)
    }


def test_an_interrupted_attempt_is_made_again_and_does_not_count(bench: Sought, matrix: Matrix) -> None:
    bench.outcome_of = lambda _: ("interrupted", None)
    with pytest.raises(UserError, match="the same command continues"):
        searched(bench, matrix, FIND, PLAIN)
    bench.outcome_of = lambda _: ("completed", None)
    found, _, campaign = searched(bench, matrix, FIND, PLAIN)
    assert f"{campaign.id}-{PLAIN}-gpu0-1-again2" in bench.results.finished()
    assert [tally.runs for tally in found.tallies.values()] == [runs_to_show(0, FIND.rate, FIND.confidence)]


def test_runs_that_do_not_count_do_not_go_on_for_ever(
    bench: Sought, matrix: Matrix, make_step: Callable[..., HealthStep]
) -> None:
    append_steps(bench.results, [make_step(gpu=gpu) for gpu in (0, 1)])
    bench.outcome_of = lambda run: ("host-fault", NOT_BEGUN) if run.planned.cell.id == PLAIN else ("completed", None)
    found, display, campaign = searched(bench, matrix, replace(FIND, every=True), PLAIN, MORE)
    assert Counter(cell for cell, _ in bench.made)[PLAIN] == UNCOUNTED
    assert {one.cell: tally.runs > 0 for one, tally in found.tallies.items()} == {PLAIN: False, MORE: True}
    assert found.why == "exhausted"
    assert [f"{PLAIN} is left out" in problem for problem in display.problems] == [True]
    # Once the host is fixed, the same command continues the campaign with this cell.
    assert not has_ended(campaign)


def test_what_the_app_accepts_in_other_runs_is_not_left_out_for_one_refusal(bench: Sought, matrix: Matrix) -> None:
    bench.outcome_of = lambda _: ("failed", REFUSED) if len(bench.made) == 3 else ("completed", None)
    found, display, _ = searched(bench, matrix, replace(FIND, rate=0.7), PLAIN)
    assert found.why == "reached"
    assert display.problems == []


def test_what_the_app_refuses_is_left_out_at_once_and_counts_against_no_cell(bench: Sought, matrix: Matrix) -> None:
    bench.outcome_of = lambda run: ("failed", REFUSED) if run.planned.cell.id == PLAIN else ("completed", None)
    found, display, _ = searched(bench, matrix, replace(FIND, every=True), PLAIN, MORE)
    assert Counter(cell for cell, _ in bench.made)[PLAIN] == 1
    assert {one.cell: tally.runs > 0 for one, tally in found.tallies.items()} == {PLAIN: False, MORE: True}
    assert [f"{PLAIN} is left out: the app refuses" in problem for problem in display.problems] == [True]


def test_a_stack_whose_probe_fails_first_is_put_off_until_anothers_has_passed(
    bench: Sought, matrix: Matrix, make_step: Callable[..., HealthStep]
) -> None:
    probed: set[int] = set()

    def outcome_of(run: Any) -> tuple[str, str | None]:
        gpu = run.planned.gpus[0]
        if run.planned.cell.id == PLAIN:
            return ("failed", "missing-arch") if gpu in probed else ("host-fault", NOT_BEGUN)
        if gpu not in probed:
            probed.add(gpu)
            append_steps(bench.results, [make_step(gpu=gpu)])
        return ("completed", None)

    bench.outcome_of = outcome_of
    found, display, _ = searched(bench, matrix, replace(FIND, every=True), PLAIN, OTHER_STACK)
    assert {one.cell: tally.passes > 0 for one, tally in found.tallies.items()} == {PLAIN: False, OTHER_STACK: True}
    assert all(tally.runs for tally in found.tallies.values())
    assert sum("other stacks are tried first" in line for line in display.problems) <= 2


@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_cell_that_resets_the_gpu_every_few_runs_is_not_known_good(every: int, bench: Sought, matrix: Matrix) -> None:
    """Every second, third or fifth run is a host fault, which an early version did not count."""
    bench.outcome_of = lambda _: (
        ("completed", None) if (len(bench.made) + 1) % every else ("host-fault", "unhealthy-gpu")
    )
    found, _, _ = searched(bench, matrix, replace(FIND, rate=0.9), PLAIN)
    assert found.why == "exhausted"


def test_a_stack_that_cannot_be_made_is_left_out(bench: Sought, matrix: Matrix) -> None:
    bench.missing = (matrix.cells[PLAIN].stack.name,)
    found, display, _ = searched(bench, matrix, FIND, PLAIN, MORE, OTHER_STACK)
    assert {cell for cell, _ in bench.made} == {OTHER_STACK}
    assert found.why == "reached"
    assert len(display.problems) <= 1


@pytest.mark.parametrize(("unanswered", "ran"), [(1, {OTHER_STACK, PLAIN}), (9, {OTHER_STACK})])
def test_a_stack_whose_source_did_not_answer_has_one_more_turn(
    unanswered: int, ran: set[str], bench: Sought, matrix: Matrix
) -> None:
    bench.unanswered_tries = {matrix.cells[PLAIN].stack.name: unanswered}
    bench.outcome_of = lambda run: ("completed" if run.planned.cell.id == PLAIN else "failed", None)
    searched(bench, matrix, FIND, PLAIN, OTHER_STACK)
    assert {cell for cell, _ in bench.made} == ran
    assert bench.unanswered_tries == {matrix.cells[PLAIN].stack.name: max(unanswered - 2, 0)}


def test_an_unhealthy_gpu_takes_no_more_runs_and_without_any_the_search_ends(
    bench: Sought, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unhealthy(*_: object) -> dict[int, str]:
        return {gpu: "its probe failed" for gpu in (0, 1) if len(bench.made) > gpu}

    monkeypatch.setattr(unhealthy_module, "unhealthy_gpus", unhealthy)
    found, display, campaign = searched(bench, matrix, replace(FIND, rate=0.9), PLAIN)
    assert [gpus for _, gpus in bench.made] == [(0,), (1,)]
    assert found.why == "exhausted"
    assert "no GPU is left to run on" in display.problems[-1]
    assert not has_ended(campaign)


def test_the_budget_is_that_of_the_whole_campaign(
    bench: Sought, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def takes_its_time(run: FakeRun) -> tuple[str, str | None]:
        now[0] += SECONDS
        return ("interrupted", None) if len(bench.made) == 2 else ("completed", None)

    bench.outcome_of = takes_its_time
    goal = replace(FIND, rate=0.9, budget=4.5 * SECONDS)
    with pytest.raises(UserError):
        searched(bench, matrix, goal, PLAIN)
    found, _, campaign = searched(bench, matrix, goal, PLAIN)
    # Two runs before the interruption and two after it; the time left is too short for another run.
    assert (found.why, [tally.runs for tally in found.tallies.values()]) == ("out-of-time", [4])
    assert has_ended(campaign)
    again, _, other = searched(bench, matrix, goal, PLAIN)
    assert (again.why, [tally.runs for tally in again.tallies.values()]) == ("out-of-time", [8])
    assert other.id != campaign.id


def test_a_run_whose_gpus_are_in_use_until_the_time_is_over_is_not_made(
    bench: Sought, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(bench, matrix, replace(FIND, rate=0.1, budget=SECONDS), PLAIN)
    ids, now = ["r8", "r9"], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ExitStack() as others:
        for gpu, run_id in enumerate(ids):
            others.enter_context(bench.gpus_for([(PlannedRun(matrix.cells[PLAIN], 1, (gpu,)), run_id)], print))

        def wait(_: float) -> None:
            now[0] += SECONDS
            if now[0] > 10 * SECONDS:
                others.close()

        monkeypatch.setattr(time, "sleep", wait)
        before = len(bench.made)
        found, _, _ = searched(bench, matrix, replace(FIND, rate=0.9, budget=4.5 * SECONDS), PLAIN)
    assert found.why == "out-of-time"
    assert len(bench.made) == before
    # A run of 10 s still fits after a wait of 30 s, and not after one of 40 s.
    assert now[0] == 4 * SECONDS


def test_another_goal_or_workload_is_another_campaign(bench: Sought, matrix: Matrix) -> None:
    keys = set()
    for goal in (FIND, replace(FIND, every=True), replace(FIND, budget=1.0), None):
        plan = replace(planned(bench, matrix, FIND, PLAIN), goal=goal)
        with begin_or_continue(plan, bench) as (campaign, continued):
            assert not continued
            begun = json.loads((bench.results.folder / "campaigns" / f"{campaign.id}.json").read_text())
            keys.add(begun["key"])
            assert begun["runs"] == [{"cell": PLAIN, "repeat": 1}] * 2
            assert ("goal" in begun) == (goal is not None)
    assert len(keys) == 4
