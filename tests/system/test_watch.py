"""Tests of the watchdog with the real app, which hangs on purpose, and limits of seconds."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.base.interrupts import interruptible
from harness.environments.environment import Environment
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_reports.step_position import read_position
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.host.processes.run_processes import processes_of_run
from harness.run.launch import base_variables
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch

TIGHT = Limits.fixed({**LIMITS, "step": 4.0})
Train = Callable[..., Watch]


@pytest.fixture
def train(
    tmp_path: Path, environment: Environment, data: InputFile, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Train]:
    """Return a function that trains with further options until the training ends or is ended."""
    monkeypatch.setattr("harness.run.watch.watch.GRACE_SECONDS", 2.0)
    folder = tmp_path / "runs" / "mine"
    work = folder / "work"
    work.mkdir(parents=True)
    RunFolder(folder).make_places()

    def train(*options: str) -> Watch:
        watch = Watch(RunFolder(folder), ProcessExecutor(), lambda _: None, None)
        places = ("--data", data.path, "--output", str(work / "output"), "--run-dir", str(work))
        fixed = ("--device", "cpu", "--lookback", "20", "--epochs", "5000", "--threads", "1", *options)
        variables = {**base_variables(RunFolder(folder).work, RunFolder(folder).temporary, 1), **environment.variables}
        job = Job(environment.app("train", *places, *fixed), variables, folder, folder / "log.txt")
        watch.execute(job, 120, TIGHT)
        assert processes_of_run(folder) == []
        return watch

    yield train
    RunFolder(folder).remove_places(all_of_it=True)


@pytest.mark.slow
def test_the_rank_that_hangs_in_backward_is_named_and_the_other_waits(train: Train, tmp_path: Path) -> None:
    watch = train(
        "--strategy", "ddp", "--devices", "2", "--loader-workers", "0", "--inject-fault", "hang-backward@40/1"
    )
    assert watch.stopped_by == "watchdog"
    told = r"rank 1 made no progress for \d+ s in phase step at step 40, in backward \(.+\); rank 0 waits, in .+"
    assert re.fullmatch(told, watch.stop_detail), watch.stop_detail
    for sample in ("stacks-1.txt", "stacks-2.txt"):
        assert "in hang" in (tmp_path / "runs/mine/failure" / sample).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_worker_that_makes_no_batch_leaves_its_rank_waiting_for_it(train: Train) -> None:
    watch = train("--loader-workers", "1", "--inject-fault", "hang-loader@20")
    assert watch.stopped_by == "watchdog"
    assert "phase step at step 20, waiting for its batch" in watch.stop_detail


@pytest.mark.slow
def test_ctrl_c_on_a_training_that_hangs_keeps_where_it_stands(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", 1.5)
    folder = tmp_path / "runs" / "mine"

    def press_when_it_hangs() -> None:
        until = time.monotonic() + 240
        while time.monotonic() < until and (
            (position := read_position(RunFolder(folder).work, 0)) is None or position.step < 40
        ):
            time.sleep(0.05)
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press_when_it_hangs, daemon=True).start()
    told = r"SIGINT; rank 0 made no progress for \d+ s in phase step at step 40, in backward \(.+\); the evidence is"
    with pytest.raises(KeyboardInterrupt, match=told), interruptible():
        train("--loader-workers", "0", "--inject-fault", "hang-backward@40/0")
    assert "in hang" in (folder / "failure" / "stacks-2.txt").read_text(encoding="utf-8")
