"""Tests of which simulated runs of a campaign in stages go side by side, and which stack is made meanwhile."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from benchmarks.evening.clock import Clock
from benchmarks.evening.simulated import BUDGET
from benchmarks.evening.worlds import GPUS, nothing_on_two, stacks, the_matrix
from benchmarks.verdicts import ROW
from harness.evidence.verdicts.counting import FAILED, NOT_BEGUN, PASSED, RunCount
from harness.matrix.workload_options import family
from harness.search.stages.conclusion import conclude_stages
from harness.search.stages.contenders import UNVERIFIED_AT_MOST
from harness.search.stages.exploration import REFUTED_BY, Explorer
from harness.search.stages.runs import NOT_BEGUN_AT_MOST, NOT_BEGUN_KIND, SeenRun, SeenRuns, StageHost, StageRun
from harness.search.stages.search import MOST_FAILURES, StageEnd, StageSearch, _Decision
from tests.harness.search.stages.test_conclusion import contender

SETUP = 600.0


def evening(*, side_by_side: bool) -> Iterator[tuple[StageRun, str | None]]:
    """Yield the runs of an evening on which two GPUs never train together, each with the stack to make meanwhile."""
    chance = random.Random(0)
    clock = Clock(nothing_on_two(chance), chance)
    cells = {name: [cell for cell in the_matrix().select("default") if cell.stack.name == name] for name in stacks()}
    host = StageHost(GPUS, GPUS, dict.fromkeys(stacks(), SETUP), side_by_side=side_by_side)
    search = StageSearch(the_matrix(), cells, host)
    while not isinstance(decided := search.next(seen := clock.seen(), 2 * BUDGET - clock.now), StageEnd):
        yield decided, search.to_prepare(decided, seen)
        clock.run(decided)


@pytest.fixture(scope="module")
def runs() -> list[tuple[StageRun, str | None]]:
    return list(evening(side_by_side=True))


def test_what_runs_side_by_side_is_the_same_on_other_gpus(runs: list[tuple[StageRun, str | None]]) -> None:
    pairs = [(run, other) for run, _ in runs for other in run.beside]
    assert {run.stage for run, _ in pairs} == {"one-gpu", "endurance"}
    for run, other in pairs:
        assert (other.stage, other.setting, other.workload) == (run.stage, run.setting, run.workload)
        assert (run.gpus, other.gpus) == ((0,), (1,))
    assert all(run.beside for run, _ in runs if run.stage == "one-gpu")
    assert not any(run.beside for run, _ in runs if len(run.gpus) > 1)


def test_where_the_host_does_not_allow_it_each_run_has_it_alone() -> None:
    alone = list(islice(evening(side_by_side=False), 12))
    assert not any(run.beside for run, _ in alone)
    assert [run.gpus for run, _ in alone if run.stage == "one-gpu"][:2] == [(0,), (1,)]


def test_the_next_stack_is_made_once_something_trained_on_one_gpu(runs: list[tuple[StageRun, str | None]]) -> None:
    assert [prepared for _, prepared in runs[:2]] == [None, None]
    first, second = stacks()[:2]
    assert {prepared for run, prepared in runs[2:] if run.cell.stack.name == first} == {second}
    assert next(prepared for run, prepared in runs if run.cell.stack.name == stacks()[-1]) is None


@pytest.mark.parametrize(
    ("attempts", "since", "again"),
    [
        (NOT_BEGUN_AT_MOST - 1, 100.0, True),
        (NOT_BEGUN_AT_MOST, 100.0, False),
        # The attempts belong to an earlier command, or a dispatcher decides which hosts to avoid.
        (NOT_BEGUN_AT_MOST, 102.0, True),
        (NOT_BEGUN_AT_MOST, None, True),
    ],
)
def test_a_run_that_was_not_begun_is_dropped_by_the_command_that_tried_it(
    attempts: int, since: float | None, again: bool
) -> None:
    stack = stacks()[0]
    cells = [cell for cell in the_matrix().select("default") if cell.stack.name == stack]
    host = StageHost(GPUS, GPUS, attempts_since=since)
    first = Explorer(the_matrix(), host, SeenRuns.of(())).explore(stack, cells).next
    assert first
    row = ROW._replace(
        cell=first.cell.id,
        workload=first.workload.name,
        family=family(first.workload, len(first.gpus)),
        outcome="host-fault",
        diagnosis=NOT_BEGUN,
    )
    rows = (row._replace(run_id=f"r{number}", started=101.0 + number) for number in range(attempts))
    count = RunCount("not-counted", kind=NOT_BEGUN_KIND)
    seen = SeenRuns.of(SeenRun(one, count, first.gpus) for one in rows)
    wanted = Explorer(the_matrix(), host, seen).explore(stack, cells).next
    assert wanted
    assert ((wanted.setting, wanted.gpus) == (first.setting, first.gpus)) is again


def passed(run: StageRun, number: int, *, verified: bool = True) -> SeenRun:
    """Return a run that passed in five minutes, as the records show it."""
    row = ROW._replace(
        run_id=f"r{number}",
        cell=run.cell.id,
        stack=run.cell.stack.name,
        workload=run.workload.name,
        family=family(run.workload, len(run.gpus)),
        started=float(number),
        finished=number + 300.0,
        verified=verified,
    )
    return SeenRun(row, PASSED, run.gpus)


def search_of_one_cell() -> StageSearch:
    """Return a search among one cell on one GPU."""
    stack = stacks()[0]
    cells = {stack: [next(cell for cell in the_matrix().select("default") if cell.stack.name == stack)]}
    return StageSearch(the_matrix(), cells, StageHost(GPUS[:1], GPUS[:1]))


def test_runs_that_pass_but_are_not_verified_end_the_campaign_which_says_so() -> None:
    search, seen = search_of_one_cell(), list[SeenRun]()
    for number in range(20):
        if isinstance(decided := search.next(SeenRuns.of(seen), None), StageEnd):
            break
        seen.append(passed(decided, number, verified=False))
    assert isinstance(decided, StageEnd)
    sentence = conclude_stages(decided, 1).sentence
    ((cell,),) = search.cells.values()
    assert f"The runs of {cell.id} were not verified, and count for nothing" in sentence


def test_a_budget_is_too_small_only_where_no_run_fits_into_it() -> None:
    """The next run without a budget may be one of hours, while a short one fits."""
    stack = stacks()[0]
    cells = {stack: [cell for cell in the_matrix().select("default") if cell.stack.name == stack]}
    search = StageSearch(the_matrix(), cells, StageHost(GPUS, GPUS))
    seen: list[SeenRun] = []
    while isinstance(run := search.next(SeenRuns.of(seen), None), StageRun) and run.stage != "endurance":
        seen.append(passed(run, len(seen)))
    assert isinstance(run, StageRun)
    shown = SeenRuns.of(seen)
    assert isinstance(search.next(shown, 3600.0), StageRun)
    assert search.least_budget(shown, 3600.0) is None
    assert search.least_budget(shown, 1.0) == the_matrix().stages["endurance"].minutes * 60


def test_what_passed_once_and_failed_again_and_again_since_makes_way_for_another_setting() -> None:
    stack = stacks()[0]
    cells = [cell for cell in the_matrix().select("default") if cell.stack.name == stack]
    host, seen = StageHost(GPUS, GPUS), list[SeenRun]()

    def following() -> StageRun | None:
        return Explorer(the_matrix(), host, SeenRuns.of(seen)).explore(stack, cells).next

    while run := following():
        seen.append(passed(run, len(seen)))
    last = next(one for one in reversed(seen) if len(one.gpus) > 1)
    for number in range(REFUTED_BY):
        assert following() is None
        row = last.row._replace(run_id=f"f{number}", outcome="hung", started=1000.0 + number)
        seen.append(replace(last, row=row, count=FAILED))
    wanted = following()
    assert wanted
    assert wanted.cell.id != last.row.cell


def test_what_failed_too_often_is_run_no_more() -> None:
    search, seen = search_of_one_cell(), list[SeenRun]()
    while isinstance(run := search.next(SeenRuns.of(seen), None), StageRun) and len(seen) < 10:
        seen.append(passed(run, len(seen)))
    assert isinstance(run, StageRun)
    for number in range(MOST_FAILURES):
        assert isinstance(search.next(SeenRuns.of(seen), None), StageRun)
        row = passed(run, 100 + number).row._replace(outcome="hung", first_step=True, exposure_seconds=60.0)
        seen.append(SeenRun(row, FAILED, run.gpus, "step"))
    end = search.next(SeenRuns.of(seen), None)
    assert isinstance(end, StageEnd)
    assert end.why == "none"


def test_what_fails_on_the_data_of_the_campaign_is_tried_a_few_times_whatever_other_data_showed() -> None:
    search, seen = search_of_one_cell(), list[SeenRun]()
    while isinstance(run := search.next(SeenRuns.of(seen), None), StageRun):
        seen.append(passed(run, len(seen)))
    assert run.why == "good"
    standard = next(one for one in seen if one.row.workload == "standard")
    numbers = range(len(seen), 200)
    seen += [replace(standard, row=standard.row._replace(run_id=f"r{n}", started=float(n))) for n in numbers]
    seen = [replace(one, on_data=False) for one in seen]
    for number in range(MOST_FAILURES):
        run = search.next(SeenRuns.of(seen), None)
        assert isinstance(run, StageRun)
        assert run.workload.name == "standard"
        row = passed(run, 300 + number).row._replace(outcome="hung", first_step=False, exposure_seconds=0.0)
        seen.append(SeenRun(row, FAILED, run.gpus, "first-step"))
    end = search.next(SeenRuns.of(seen), None)
    assert isinstance(end, StageEnd)
    assert (end.why, end.best and end.best.is_good) == ("none", False)


def test_runs_on_the_data_of_the_campaign_that_were_not_verified_make_nothing_good() -> None:
    search, seen = search_of_one_cell(), list[SeenRun]()
    while isinstance(run := search.next(SeenRuns.of(seen), None), StageRun):
        seen.append(passed(run, len(seen)))
    seen = [replace(one, on_data=False) for one in seen]
    for number in range(UNVERIFIED_AT_MOST):
        run = search.next(SeenRuns.of(seen), None)
        assert isinstance(run, StageRun)
        seen.append(passed(run, 100 + number, verified=False))
    end = search.next(SeenRuns.of(seen), None)
    assert isinstance(end, StageEnd)
    assert (end.why, end.best and end.best.is_good) == ("none", False)


@pytest.mark.parametrize(("gpus", "slack"), [(GPUS, 3000.0), (GPUS[:1], 0.0)])
def test_time_for_one_more_failed_start_is_kept_for_what_trains_on_several_gpus(
    gpus: tuple[int, ...], slack: float
) -> None:
    stack = stacks()[0]
    cells = {stack: [cell for cell in the_matrix().select("default") if cell.stack.name == stack]}
    search, none = StageSearch(the_matrix(), cells, StageHost(GPUS, GPUS)), SeenRuns.of(())
    run = search.next(none, None)
    assert isinstance(run, StageRun)
    sound = replace(contender(the_matrix(), good=False, gpus=gpus), seconds_needed=1000.0)
    cost = _Decision(search, none, 0.0).cost(run)
    for spare, fits in ((slack - 1.0, False), (slack, True)):
        assert _Decision(search, none, cost + 1000.0 + spare)._is_affordable(run, [sound]) is fits
