"""Tests of how a campaign ends after an error or after losing runs with the engine. Nothing is really run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import Plan, PlannedRun
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.run_campaign import CampaignResult, earlier_of, run_campaign, with_caution
from harness.campaign.runner import MOST_LOST_IN_A_ROW, InterruptedRunError
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.recommend import NamedCell
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.search.conclusion import Conclusion
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

CELLS = ("rocm6.3-torch2.9.1-plain", "rocm6.2-torch2.5.1-plain")
FOUND = Conclusion("reached", True, "cpu-plain is known-good.", False, {}, NamedCell("cpu-plain", "single"))


@pytest.fixture
def bench(tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record]) -> ScriptedBench:
    bench = ScriptedBench(Results(tmp_path / "results"), ProcessExecutor(), dual_host, (0, 1))

    def made(run_id: str, outcome: str, *more: Any, **changes: Any) -> Record:
        record = make_record(run_id, outcome, *more, device="cuda", **changes)
        return record.model_copy(update={"interrupted_by": "engine" if outcome == "interrupted" else None})

    bench.make_record, bench.made = cast("Any", partial(made)), []
    return bench


def run(bench: ScriptedBench, matrix: Matrix, display: RecordingDisplay | None = None) -> CampaignResult:
    runs = tuple(PlannedRun(matrix.cells[cell], 1, (0,)) for cell in CELLS)
    plan = Plan(matrix.workloads["quick"], runs, (), 0.0, 0.0, None, "", 0.0, None)
    return run_campaign(PreparedCampaign(plan, cast("Any", None), bench, matrix), display or RecordingDisplay())


def test_a_cell_whose_app_refuses_the_command_gets_no_second_run(bench: ScriptedBench, matrix: Matrix) -> None:
    made = bench.make_record
    bench.make_record = cast(
        "Any", lambda *args, **changes: made(*args, diagnosis="refused", detail="no --x", **changes)
    )
    bench.outcome_of = lambda _: "failed"
    runs = tuple(PlannedRun(matrix.cells[cell], repeat, (0,)) for repeat in (1, 2, 3) for cell in CELLS)
    plan = Plan(matrix.workloads["quick"], runs, (), 0.0, 0.0, None, "", 0.0, None)
    display = RecordingDisplay()
    ended = run_campaign(PreparedCampaign(plan, cast("Any", None), bench, matrix), display)
    assert (ended.done, ended.total, ended.succeeded) == (2, 6, False)
    assert display.problems == [f"{cell} is left out: the app refuses this command: no --x" for cell in CELLS]


def test_a_cell_whose_app_took_the_command_before_is_run_on(bench: ScriptedBench, matrix: Matrix) -> None:
    made = bench.make_record

    def refused_second(run_id: str, *_: str, **_changes: object) -> Record:
        if bench.made:
            return made(run_id, "failed", diagnosis="refused", detail="no --x")
        return made(run_id, "completed").model_copy(update={"first_step": True})

    bench.make_record, bench.outcome_of = cast("Any", refused_second), lambda _: "completed"
    runs = tuple(PlannedRun(matrix.cells[CELLS[0]], repeat, (0,)) for repeat in (1, 2, 3))
    plan = Plan(matrix.workloads["quick"], runs, (), 0.0, 0.0, None, "", 0.0, None)
    ended = run_campaign(PreparedCampaign(plan, cast("Any", None), bench, matrix), RecordingDisplay())
    assert (ended.done, ended.total) == (3, 3)


@pytest.mark.parametrize("error", [UserError("the disk is full; free some"), ValueError("a mistake of ours")])
def test_an_error_is_returned_with_what_was_done(error: Exception, bench: ScriptedBench, matrix: Matrix) -> None:
    def second_fails(_: Cell) -> str:
        if bench.made:
            raise error
        return "completed"

    bench.outcome_of = second_fails
    ended = run(bench, matrix)
    assert (ended.error, ended.done, ended.total, ended.succeeded, ended.interrupted) == (error, 1, 2, False, False)
    bench.outcome_of = lambda _: "completed"
    again = run(bench, matrix)
    assert (again.campaign, again.done, again.error) == (ended.campaign, 2, None)


def test_an_error_before_any_run_is_raised(bench: ScriptedBench, matrix: Matrix) -> None:
    def fails(_: Cell) -> str:
        raise UserError("the data cannot be trained on")

    bench.outcome_of = fails
    with pytest.raises(UserError, match="cannot be trained on"):
        run(bench, matrix)


def test_what_is_lost_with_the_engine_is_run_again(bench: ScriptedBench, matrix: Matrix) -> None:
    ends = iter(["interrupted", "completed", "interrupted", "interrupted", "failed"])
    bench.outcome_of = lambda _: next(ends)
    display = RecordingDisplay()
    ended = run(bench, matrix, display)
    assert (ended.error, ended.done) == (None, 2)
    assert [row.outcome for row in Index(bench.results).rows()] == [
        "interrupted",
        "completed",
        "interrupted",
        "interrupted",
        "failed",
    ]
    assert sum("does not count, and the command continues" in line for line in display.lines) == 3


def test_an_engine_that_keeps_losing_runs_ends_the_campaign(bench: ScriptedBench, matrix: Matrix) -> None:
    bench.outcome_of = lambda _: "interrupted"
    ended = run(bench, matrix)
    assert isinstance(ended.error, InterruptedRunError)
    assert len(bench.made) == MOST_LOST_IN_A_ROW + 1


def test_a_conclusion_on_an_image_of_uncommitted_changes_says_so(make_record: Callable[..., Record]) -> None:
    clean, dirty = (Row.of(make_record(executor="docker", revision=f"{'c' * 40}{more}")) for more in ("", "-dirty"))
    assert with_caution(FOUND, [clean]) == FOUND
    said = with_caution(FOUND, [clean, dirty]).sentence
    assert said.startswith(f"{FOUND.sentence} But its image was made from changes that no commit has")


@pytest.mark.parametrize(("pooled", "runs"), [(True, ["r1", "r2"]), (False, ["r2"])])
def test_a_campaign_in_stages_also_concludes_from_uncommitted_runs_before_the_newest(
    bench: ScriptedBench, make_record: Callable[..., Record], pooled: bool, runs: list[str]
) -> None:
    made = (("r0", "another", "-dirty"), ("r1", "now", "-dirty"), ("r2", "now", ""))
    for number, (run_id, environment, more) in enumerate(made):
        record = make_record(
            run_id,
            cell="cpu-plain",
            started=1000.0 + number,
            environment_hash=environment,
            revision=f"{'c' * 40}{more}",
        )
        bench.results.begin(record.intent)
        bench.results.finish(record)
    earlier = earlier_of(FOUND.named, bench, pooled=pooled)
    assert [row.run_id for row in earlier] == runs
    assert (with_caution(FOUND, earlier) != FOUND) is pooled
