"""Tests of making a stack while runs go on: real processes, with interpreters that only pretend."""

import time
from pathlib import Path

import psutil
import pytest

from benchmarks.kill_tester import write_stand_in
from harness.campaign.bench.bench import Bench
from harness.campaign.helpers.background import LOWEST_PRIORITY, Background
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Preset
from harness.matrix.stacks import Stack
from tests.harness.pretending import RecordingDisplay

CELL = Cell(Stack(name="mine", accelerator="any"), Preset(name="plain", description="nothing set"))


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    write_stand_in(tmp_path / "python")
    return tmp_path / "python"


def background(interpreter: Path, host: HostFacts) -> tuple[Background, RecordingDisplay]:
    bench = Bench(Results(interpreter.parent / "results"), ProcessExecutor(), host, (), interpreter)
    display = RecordingDisplay()
    return Background(bench, display), display


@pytest.mark.slow
def test_what_was_made_is_waited_for_once(interpreter: Path, host: HostFacts) -> None:
    maker, display = background(interpreter, host)
    maker.make(CELL)
    assert not maker.wait_for("another")
    assert maker._helper
    pid, until = maker._helper.process.pid, time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid), "it is no zombie until its turn"
    assert maker.wait_for("mine")
    assert not maker.wait_for("mine")
    assert display.problems == []
    assert maker.begun == {"mine"}


@pytest.mark.slow
def test_what_failed_is_said_at_its_turn(interpreter: Path, host: HostFacts) -> None:
    interpreter.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    maker, display = background(interpreter, host)
    maker.make(CELL)
    assert display.problems == []
    assert not maker.wait_for("mine")
    (problem,) = display.problems
    assert problem.startswith("stack mine could not be built in the background: --python ")
    assert problem.endswith("; trying once more")


@pytest.mark.slow
def test_it_has_the_lowest_priority_and_ends_with_the_campaign(
    interpreter: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The helper has the lowest priority, so it may end slowly while other tests use the processors.
    monkeypatch.setattr("harness.campaign.helpers.helper.END_SECONDS", 120)
    note = interpreter.with_name("pid")
    interpreter.write_text(f"#!/bin/sh\necho $$ > {note}.new\nmv {note}.new {note}\nexec sleep 600\n", encoding="utf-8")
    maker, _ = background(interpreter, host)
    maker.make(CELL)
    while not note.exists():
        assert maker._helper
        assert maker._helper.process.poll() is None, maker._helper.stderr_tail
        time.sleep(0.02)
    process = psutil.Process(int(note.read_text()))
    assert process.nice() == LOWEST_PRIORITY
    maker.close()
    psutil.wait_procs([process], timeout=60)
    assert not process.is_running()


@pytest.mark.slow
def test_it_ends_with_the_process_that_began_it(interpreter: Path, host: HostFacts) -> None:
    interpreter.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    maker, _ = background(interpreter, host)
    maker.make(CELL)
    helper = maker._helper
    assert helper
    # The kernel closes this pipe when the process that began the helper is killed.
    assert helper.process.stdin
    helper.process.stdin.close()
    assert helper.process.wait(60) != 0
    maker.close()
