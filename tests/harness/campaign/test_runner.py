"""Tests of making a planned run ready and of running it. Nothing is really run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.bench import Bench, StackUnavailableError
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.runner import EngineLosses, InterruptedRunError, Runner
from harness.environments.environment import Environment
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.run.requested_run import Run
from tests.harness.pretending import RecordingDisplay

CELL = "cpu-plain"


class Events(Bench):
    """A bench that notes its actions in order; `outcome` is the outcome of its runs."""

    events: list[str]
    outcome: str = "completed"
    make_record: Callable[..., Record]
    broken: bool = False
    interrupted_by: str | None = None

    def environment(self, cell: Cell, notify: Any = None) -> Environment:
        if self.broken:
            raise UserError("its wheels are gone")
        if not self.has_environment(cell):
            self.events.append("environment")
            self.use_environment(cell, Environment(Path("/python"), {}, {}, "cpu"))
        return super().environment(cell)

    def data_of(self, *_: object) -> InputFile:
        self.events.append("data")
        return InputFile(path="/bars.csv", sha256="a" * 64)

    @contextmanager
    def gpus_for(self, *_: object) -> Iterator[int]:
        self.events.append("locked")
        yield 0
        self.events.append("released")

    def remove_lost_containers(self) -> None:
        self.events.append("lost containers")

    def run_cell(self, run: Run, *_: object) -> Record:
        self.events.append(f"run {run.run_id} of {run.cell.id} for {run.campaign}")
        record = self.make_record(run.run_id, self.outcome, cell=run.cell.id)
        record = record.model_copy(update={"interrupted_by": self.interrupted_by})
        self.results.begin(record.intent)
        self.results.finish(record)
        return record


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, make_record: Callable[..., Record]) -> Events:
    results = Results(tmp_path / "results")
    bench = Events(results, ProcessExecutor(), host, ())
    bench.events, bench.make_record = [], make_record
    return bench


@pytest.fixture
def runner(bench: Events, matrix: Matrix) -> Runner:
    return Runner(bench, matrix.workloads["quick"], RecordingDisplay(), "c1", 3)


@pytest.fixture
def pending(matrix: Matrix) -> PendingRun:
    return PendingRun(PlannedRun(matrix.cells[CELL], 1), "r1")


RUN = [f"run r1 of {CELL} for c1"]


def test_environment_and_data_are_made_while_no_gpu_is_locked(
    bench: Events, runner: Runner, pending: PendingRun
) -> None:
    chosen, record = runner.run([pending])
    assert (chosen, record.intent.run_id, record.outcome) == (pending, "r1", "completed")
    assert bench.events == ["locked", "released", "environment", "data", "locked", "data", *RUN, "released"]


def test_so_is_the_data_where_the_environment_was_given(bench: Events, runner: Runner, pending: PendingRun) -> None:
    bench.use_environment(pending.cell, Environment(Path("/pulled"), {}, {}, "cpu"))
    runner.run([pending])
    assert bench.events[:4] == ["locked", "released", "data", "locked"]


def test_what_is_ready_is_not_made_ready_again(bench: Events, runner: Runner, pending: PendingRun) -> None:
    runner.run([pending])
    bench.events.clear()
    runner.run([replace(pending, run_id="r2")])
    assert bench.events[:2] == ["locked", "data"]


def test_a_record_is_in_the_index_and_shown(bench: Events, runner: Runner, pending: PendingRun) -> None:
    _, record = runner.run([pending])
    assert [row.run_id for row in Index(bench.results).rows()] == ["r1"]
    assert cast("RecordingDisplay", runner.display).records == [record]


def test_an_index_that_cannot_be_written_costs_no_run(
    runner: Runner, pending: PendingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UserError("the disk is full")

    monkeypatch.setattr(Index, "add", full)
    _, record = runner.run([pending])
    display = cast("RecordingDisplay", runner.display)
    assert (display.problems, display.records) == (["the disk is full"], [record])


def test_a_run_that_the_engine_interrupted_ends_the_command_after_its_record(
    bench: Events, runner: Runner, pending: PendingRun
) -> None:
    bench.outcome = "interrupted"
    with pytest.raises(InterruptedRunError, match="the same command continues where it stopped") as raised:
        runner.run([pending])
    assert raised.value.record == bench.results.record("r1")
    assert cast("RecordingDisplay", runner.display).records == [raised.value.record]


def test_so_many_runs_in_a_row_may_be_lost_with_the_engine(bench: Events, runner: Runner, pending: PendingRun) -> None:
    runner = replace(runner, losses=EngineLosses(most=2))

    def outcomes(*ends: str) -> list[str]:
        found: list[str] = []
        for end in ends:
            bench.outcome, bench.interrupted_by = end, "engine" if end == "interrupted" else None
            _, record = runner.run([replace(pending, run_id=f"r{len(bench.events)}")])
            found.append(record.outcome)
        return found

    lost = "interrupted"
    assert outcomes(lost, lost, "failed", lost, lost) == [lost, lost, "failed", lost, lost]
    problems = cast("RecordingDisplay", runner.display).problems
    assert len(problems) == 4
    assert bench.events.count("lost containers") == 3
    assert "this does not count, and the command continues" in problems[0]
    with pytest.raises(InterruptedRunError):
        outcomes(lost)


@pytest.mark.parametrize("by", ["scheduler", None])
def test_what_else_interrupts_a_run_ends_the_campaign(
    by: str | None, bench: Events, runner: Runner, pending: PendingRun
) -> None:
    bench.outcome, bench.interrupted_by = "interrupted", by
    with pytest.raises(InterruptedRunError):
        replace(runner, losses=EngineLosses(most=2)).run([pending])


def test_a_change_has_the_last_word(bench: Events, runner: Runner, pending: PendingRun, matrix: Matrix) -> None:
    runner.run([pending], change=lambda run: replace(run, cell=matrix.cells["cpu-no-sdma"]))
    assert "run r1 of cpu-no-sdma for c1" in bench.events


def test_a_stack_that_cannot_be_made_is_named_and_no_gpu_stays_locked(
    bench: Events, runner: Runner, pending: PendingRun
) -> None:
    bench.broken = True
    with pytest.raises(StackUnavailableError, match="its wheels are gone") as raised:
        runner.run([pending])
    assert raised.value.stack == pending.cell.stack
    assert bench.events == ["locked", "released"]
