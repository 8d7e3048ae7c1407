"""Tests with real processes: they are started, watched, stopped and found again, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.errors import UserError
from harness.base.files.storage import write_json
from harness.base.interrupts import interruptible
from harness.base.time_limits import BackgroundCall
from harness.environments.executors.job import Exit, Handle, Job
from harness.environments.executors.process import ProcessExecutor
from harness.host.processes import unmarked
from harness.host.processes.processes import ProcessId, command_of
from harness.host.processes.run_processes import end_processes_of_run, processes_of_run

# A program with a child that ignores TERM in a session of its own, as a stray helper process may.
STRAY = """
import signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"],
                 start_new_session=True)
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def run_id() -> str:
    return "mine"


@pytest.fixture
def executor(tmp_path: Path) -> ProcessExecutor:
    return ProcessExecutor()


def job(tmp_path: Path, run_id: str, code: str, *arguments: str) -> Job:
    folder = tmp_path / run_id
    folder.mkdir(exist_ok=True)
    note = folder / "process.json"
    return Job(
        (sys.executable, "-c", code, *arguments), {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt", note=note
    )


def ended(handle: Handle, seconds: float = 30) -> Exit:
    until = time.monotonic() + seconds
    while (exit_ := handle.poll()) is None:
        assert time.monotonic() < until, "still running"
        time.sleep(0.02)
    return exit_


def wait_for(text: str, log: Path) -> None:
    until = time.monotonic() + 30
    while text not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < until, "never said so"
        time.sleep(0.02)


def test_output_goes_to_the_log_and_the_status_comes_back(
    tmp_path: Path, run_id: str, executor: ProcessExecutor
) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    handle = executor.start(job(tmp_path, run_id, code))
    assert ended(handle) == Exit(3)
    assert sorted((tmp_path / run_id / "log.txt").read_text().split()) == ["err", "out"]


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    begun = job(tmp_path, run_id, "print('out')")
    begun.log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        executor.start(begun)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_crash_is_reported_by_its_signal(
    number: signal.Signals, tmp_path: Path, run_id: str, executor: ProcessExecutor
) -> None:
    exit_ = ended(executor.start(job(tmp_path, run_id, f"import os; os.kill(os.getpid(), {number.value})")))
    assert not exit_.ok
    assert str(exit_) == number.name


def test_nothing_of_the_callers_environment_is_passed_on(
    tmp_path: Path, run_id: str, executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    handle = executor.start(job(tmp_path, run_id, "import os; print(sorted(os.environ))"))
    ended(handle)
    assert "HSA_OVERRIDE_GFX_VERSION" not in (tmp_path / run_id / "log.txt").read_text()


def test_stopping_ends_strays_that_ignore_term(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    handle = executor.start(job(tmp_path, run_id, STRAY, "60"))
    wait_for("ready", tmp_path / run_id / "log.txt")
    assert len(processes_of_run(tmp_path / run_id)) == 2
    assert handle.stop(grace=1)
    assert ended(handle) == Exit(-signal.SIGTERM)
    assert processes_of_run(tmp_path / run_id) == []


def test_a_process_that_ignores_term_is_killed(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    handle = executor.start(job(tmp_path, run_id, code))
    wait_for("ready", tmp_path / run_id / "log.txt")
    assert handle.stop(grace=0.5)
    assert ended(handle) == Exit(-signal.SIGKILL)


def test_a_stopped_process_can_still_be_ended(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    handle = executor.start(job(tmp_path, run_id, "import time; print('ready', flush=True); time.sleep(60)"))
    wait_for("ready", tmp_path / run_id / "log.txt")
    (process,) = processes_of_run(tmp_path / run_id)
    process.suspend()
    assert handle.stop(grace=0.5)
    assert not ended(handle).ok
    assert processes_of_run(tmp_path / run_id) == []


def test_what_a_process_left_behind_is_ended(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    handle = executor.start(job(tmp_path, run_id, STRAY, "0"))
    assert ended(handle) == Exit(0)
    assert len(processes_of_run(tmp_path / run_id)) == 1
    assert end_processes_of_run(tmp_path / run_id, grace=0.5)
    assert processes_of_run(tmp_path / run_id) == []


def test_a_run_is_found_again_by_another_harness(tmp_path: Path, run_id: str, executor: ProcessExecutor) -> None:
    started = executor.start(job(tmp_path, run_id, "import time; time.sleep(60)"))
    lost = job(tmp_path, run_id, "")
    found = ProcessExecutor().find(lost)
    assert found is not None
    assert found.poll() is None
    assert found.stop(grace=1)
    ended(started)
    assert found.poll() is not None
    assert ProcessExecutor().find(lost) is None
    assert executor.find(job(tmp_path, "no such run", "")) is None


@pytest.mark.parametrize(
    "command", [["env", "-i", "sleep", "60"], ["sh", "-c", "exec env -i sleep 60"]], ids=["env", "a script"]
)
def test_a_program_that_runs_without_variables_is_found_again(
    tmp_path: Path, executor: ProcessExecutor, command: list[str]
) -> None:
    lost = job(tmp_path, "mine", "")
    started = executor.start(replace(lost, arguments=tuple(command), work=tmp_path / "mine"))
    until = time.monotonic() + 30
    while command_of(started.pid) != "sleep 60 ":
        assert time.monotonic() < until
        time.sleep(0.01)
    unmarked._runs.clear()
    found = ProcessExecutor().find(lost)
    assert found is not None
    assert found.stop(grace=1)
    assert not ended(started).ok


@pytest.mark.parametrize("kind", ["elsewhere", "another run", "a shell there", "no number"])
def test_a_process_that_is_not_the_runs_is_not_ended_though_its_note_names_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody who shares a results folder may write anything into a note, and may move a note."""
    # The bystander is a child of this process, so a run that another test has tracked would adopt it as an orphan.
    monkeypatch.setattr(unmarked, "_runs", {})
    forged = job(tmp_path, "mine", "")
    assert forged.note
    mark = {"MATRIX_RUN": str(tmp_path / "other")} if kind == "another run" else {}
    folder = tmp_path if kind == "elsewhere" else forged.folder
    with (forged.log if kind == "another run" else Path(os.devnull)).open("wb") as log:
        bystander = subprocess.Popen(["sleep", "60"], cwd=folder, env=mark, stdout=log, start_new_session=True)
    try:
        named = asdict(ProcessId.of(bystander.pid))
        write_json(forged.note, named | {"pid": f"../proc/{bystander.pid}"} if kind == "no number" else named)
        assert ProcessExecutor().find(forged) is None
        assert end_processes_of_run(forged.folder, grace=0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_what_another_user_names_in_a_shared_results_folder_is_not_ended(tmp_path: Path, run_id: str) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        forged = job(tmp_path, run_id, "")
        assert forged.note
        write_json(forged.note, asdict(ProcessId.of(bystander.pid)))
        os.chown(forged.note, 65534, 65534)
        assert ProcessExecutor().find(forged) is None
        assert end_processes_of_run(tmp_path / run_id, grace=0.1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_pipe_in_the_place_of_what_names_a_process_is_not_waited_for(tmp_path: Path, run_id: str) -> None:
    forged = job(tmp_path, run_id, "")
    assert forged.note
    os.mkfifo(forged.note)
    assert BackgroundCall(partial(ProcessExecutor().find, forged)).result(5) is None


def test_the_same_run_id_in_another_folder_is_another_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    here, there = (ProcessExecutor().start(job(tmp_path / name, "mine", STRAY, "60")) for name in ("one", "two"))
    assert end_processes_of_run(tmp_path / "one" / "mine", grace=1)
    assert not ended(here).ok
    assert there.poll() is None
    there.stop(grace=1)


def test_a_program_that_is_not_there_is_reported_at_the_start(tmp_path: Path, executor: ProcessExecutor) -> None:
    missing = Job(("/none/python",), {}, tmp_path, tmp_path / "log.txt")
    with pytest.raises(FileNotFoundError):
        executor.start(missing)


def test_a_process_is_not_another_one_with_its_pid() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    identity = ProcessId.of(process.pid)
    assert identity.alive()
    assert not ProcessId(identity.pid, identity.started - 1, identity.boot).alive()
    assert not ProcessId(identity.pid, identity.started, "another boot").alive()
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not identity.alive()
    process.wait()
    assert not identity.alive()
    with pytest.raises(ProcessLookupError):
        ProcessId.of(process.pid)


@pytest.mark.parametrize("error", [UserError("the disk is full"), KeyboardInterrupt("SIGINT")])
def test_a_process_that_cannot_be_noted_is_ended(
    error: BaseException, tmp_path: Path, run_id: str, executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        assert processes_of_run(tmp_path / run_id)
        raise error

    monkeypatch.setattr("harness.environments.executors.process.write_json", fail)
    with pytest.raises(type(error)):
        executor.start(job(tmp_path, run_id, "import time; time.sleep(60)"))
    assert processes_of_run(tmp_path / run_id) == []


def test_a_process_is_ended_that_an_interruption_keeps_from_being_known(
    tmp_path: Path, run_id: str, executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = subprocess.Popen, []

    def interrupted(*words: Any, **options: Any) -> Any:
        started.append(start(*words, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        executor.start(job(tmp_path, run_id, "import time; time.sleep(60)"))
    # Its exit code is taken, too: otherwise it would stay in the process table.
    assert started[0].returncode == -signal.SIGTERM
