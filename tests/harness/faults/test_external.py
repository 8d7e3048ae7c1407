"""Faults that the harness injects, each in what it changes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from harness.base.errors import UserError
from harness.environments.environment import Environment
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.faults import external, own_engine
from harness.faults.external import (
    BrokenTorch,
    ContainerRemoved,
    ExternalFault,
    FullDisk,
    LittleMemory,
    MissingDevice,
    Paused,
    Site,
    TinySharedMemory,
)
from harness.faults.kinds import WORKLOAD
from harness.host.processes.run_processes import RUN_MARK, run_mark
from harness.matrix.cells import Matrix
from harness.run.requested_run import Run
from harness.run.spec import resolve_run

if TYPE_CHECKING:
    from harness.host.facts import HostFacts

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run(matrix: Matrix, make_intent: Callable[..., object], tmp_path: Path) -> MakeRun:
    """A run of the plain cell on the CPU, in a container or as a process."""

    def make(image: str | None = None) -> Run:
        host: HostFacts = make_intent().host  # type: ignore[attr-defined]
        data = InputFile(path=str(tmp_path / "data.csv"), sha256="0" * 64)
        environment = Environment(Path("/none/python"), {}, {"PYTHONPATH": "/app"}, "cpu", image)
        return Run("r1", matrix.cells["cpu-plain"], WORKLOAD, data, environment, host)

    return make


def test_what_a_container_is_limited_to_is_in_its_intent_and_nothing_else_changes(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    usual = resolve_run(make_run("sha256:1"), folder).container
    assert usual is not None
    for fault, key in ((LittleMemory(12345), "memory_bytes"), (TinySharedMemory(12345), "shared_memory_bytes")):
        changed = resolve_run(fault.change(make_run("sha256:1")), folder)
        assert changed.intent.container == {**usual.plain, key: 12345}
        assert resolve_run(fault.change(make_run()), folder).container is None
        told = changed.container
        assert told is not None
        assert 12345 in told.create_arguments().values()
        assert "12345" in told.command_line({}, ()).split()


def test_a_missing_device_asks_for_a_gpu_and_in_a_container_for_its_node(make_run: MakeRun) -> None:
    contained = MissingDevice().change(make_run("sha256:1"))
    assert contained.environment.device == "cuda"
    (node,) = contained.devices
    assert not Path(node.host).exists()
    assert MissingDevice().change(make_run()).devices == ()


def test_a_broken_torch_is_found_before_any_other(make_run: MakeRun, tmp_path: Path) -> None:
    fault = BrokenTorch()
    run = fault.change(make_run())
    fault.before_start(tmp_path)
    command = [sys.executable, "-P", "-c", "import torch"]
    done = subprocess.run(
        command, cwd=tmp_path, env=run.environment.variables, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == f"ImportError: {external.NO_LIBRARY}"


def test_a_full_disk_is_small_and_gone_afterwards(tmp_path: Path) -> None:
    fault = FullDisk()
    if why := fault.why_not():
        pytest.skip(why)
    fault.before_start(tmp_path)
    try:
        with (tmp_path / "output" / "big").open("wb") as file, pytest.raises(OSError, match="No space left"):
            file.write(b"\0" * (2 * external.FULL_DISK_BYTES))
    finally:
        fault.after(tmp_path)
    assert not (tmp_path / "output").is_mount()
    fault.after(tmp_path)


def test_who_is_not_root_learns_why_a_fault_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "has_capabilities", lambda _: False)
    monkeypatch.setattr(own_engine, "has_capabilities", lambda *_: False)
    assert "only root" in (FullDisk().why_not() or "")
    assert "only root" in (external.EngineRestarted().why_not() or "")
    assert ExternalFault().why_not() is None


def test_a_pause_that_finds_nothing_to_stop_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    process = psutil.Process(ended.pid)
    ended.wait()
    for found in ([], [process]):
        monkeypatch.setattr(external, "processes_of_run", lambda _, found=found: found)
        with pytest.raises(UserError, match="no process that could be stopped"):
            Paused().while_training(Site(tmp_path, None, None))


def test_a_pause_stops_every_process_of_the_run_and_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []

    def look(_seconds: float) -> None:
        until = time.monotonic() + 10
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < until:
            os.sched_yield()
        states.append(psutil.Process(process.pid).status())

    process = subprocess.Popen(["sleep", "60"], env={RUN_MARK: run_mark(tmp_path), "PATH": os.environ["PATH"]})
    try:
        monkeypatch.setattr(external, "time", SimpleNamespace(sleep=look))
        Paused().while_training(Site(tmp_path, None, None))
        assert states == [psutil.STATUS_STOPPED]
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_container_is_removed_with_its_volumes(tmp_path: Path) -> None:
    removed: list[dict[str, bool]] = []
    container = SimpleNamespace(remove=lambda **how: removed.append(how))
    listed = SimpleNamespace(list=lambda filters: [container] if run_mark(tmp_path) in filters["label"] else [])
    engine = SimpleNamespace(client=SimpleNamespace(containers=listed))
    ContainerRemoved().while_training(Site(tmp_path, engine, None))  # type: ignore[arg-type]
    assert removed == [{"force": True, "v": True}]
