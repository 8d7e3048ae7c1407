"""Tests of controls as a step of a campaign. Nothing is really run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from harness.campaign.bench.plan import Plan, PlannedRun
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.run_campaign import CampaignResult, run_campaign
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

CELL, PLAIN = "rocm6.3-torch2.9.1-notes-stable", "rocm6.3-torch2.9.1-plain"
OTHER = "rocm6.2-torch2.5.1-plain"


@pytest.fixture
def bench(tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record]) -> ScriptedBench:
    """Return a bench on which CELL hangs and every other cell completes."""
    bench = ScriptedBench(Results(tmp_path / "results"), ProcessExecutor(), dual_host, (0, 1))
    bench.make_record, bench.made = partial(make_record, device="cuda"), []
    bench.outcome_of = hangs
    return bench


def hangs(cell: Cell) -> str:
    return "hung" if cell.id == CELL else "completed"


def run(
    bench: ScriptedBench, matrix: Matrix, repeats: int = 2, controls: int = 40, display: RecordingDisplay | None = None
) -> CampaignResult:
    runs = tuple(
        PlannedRun(matrix.cells[cell], repeat, (gpu,), f"-gpu{gpu}")
        for repeat in range(1, repeats + 1)
        for cell in (CELL, PLAIN, OTHER)
        for gpu in (0, 1)
    )
    workload = matrix.workloads["quick"]
    plan = Plan(workload, runs, (), 0.0, 0.0, None, "", 0.0, None, controls=controls)
    prepared = PreparedCampaign(plan, cast("Any", None), bench, matrix)
    return run_campaign(prepared, display or RecordingDisplay())


def controls_in(bench: ScriptedBench) -> int:
    return sum((row.campaign or "").startswith("isolate-") for row in Index(bench.results).rows())


def test_a_campaign_with_suspicious_failures_runs_controls(bench: ScriptedBench, matrix: Matrix) -> None:
    display = RecordingDisplay()
    ended = run(bench, matrix, display=display)
    assert ended.isolation is not None
    assert (ended.isolation.cause, ended.isolation.failures, ended.hint) == ("cell", 4, None)
    assert (ended.done, ended.total, ended.succeeded) == (12, 12, False)
    assert controls_in(bench) == ended.isolation.runs > 0
    assert any(f"4 runs of {CELL} failed" in line and "40 runs at most" in line for line in display.lines)


def test_without_controls_it_says_how_to_tell(bench: ScriptedBench, matrix: Matrix) -> None:
    ended = run(bench, matrix, controls=0)
    assert (ended.isolation, controls_in(bench)) == (None, 0)
    assert ended.hint is not None
    assert f"`matrix isolate {CELL}`" in ended.hint


def test_failures_that_are_the_programs_need_no_controls(bench: ScriptedBench, matrix: Matrix) -> None:
    bench.outcome_of = lambda cell: "failed" if cell.id == CELL else "completed"
    ended = run(bench, matrix)
    assert (ended.isolation, ended.hint, controls_in(bench)) == (None, None, 0)


def test_one_failure_may_be_chance(bench: ScriptedBench, matrix: Matrix) -> None:
    once = iter(["hung"])
    bench.outcome_of = lambda cell: next(once, "completed") if cell.id == CELL else "completed"
    ended = run(bench, matrix)
    assert (ended.isolation, controls_in(bench)) == (None, 0)
    assert ended.hint is not None


@pytest.mark.slow
def test_interrupted_controls_are_continued_by_the_same_command(bench: ScriptedBench, matrix: Matrix) -> None:
    def until_killed(cell: Cell) -> str:
        if len(bench.made) == 18:
            raise KeyboardInterrupt
        return hangs(cell)

    bench.outcome_of = until_killed
    stopped = run(bench, matrix)
    assert (stopped.interrupted, stopped.done, controls_in(bench)) == (True, 12, 6)
    bench.outcome_of = hangs
    ended = run(bench, matrix)
    assert ended.campaign == stopped.campaign
    assert ended.isolation is not None
    assert len(bench.made) == 12 + ended.isolation.runs
    assert run(bench, matrix).campaign != ended.campaign
