"""Tests of real processes that hide as well as they can that they belong to their run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from harness.environments.executors.job import Exit, Handle, Job
from harness.environments.executors.process import ProcessExecutor
from harness.host.processes.processes import ProcessId, variable_of
from harness.host.processes.run_processes import RUN_MARK, end_processes_of_run, look_at_processes, processes_of_run
from harness.host.processes.unmarked import _runs, _Tracked, note_containers, track_container

SLEEP = "import signal, time; signal.signal(15, signal.SIG_IGN); open({!r}, 'a').write('x'); time.sleep(120)"
# Each leaves a process that runs SLEEP: by default `start` gives it an empty environment.
DISGUISES = {
    "emptied environment": "start()",
    "forged mark": "start({'MATRIX_RUN': '/another/run'})",
    "own session and group": """
if os.fork() == 0:
    os.setsid()
    start()
""",
    "double fork": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        start()
    os._exit(0)
os.wait()
""",
    "changed name": """
if os.fork() == 0:
    os.setsid()
    start(name="[kworker/0:1]")
""",
}
CODE = """
import ctypes, os, sys
def start(environment={}, name=sys.executable):
    os.spawnve(os.P_NOWAIT, sys.executable, [name, "-S", "-c", sys.argv[1]], environment)
"""


@pytest.fixture(autouse=True)
def _no_zombies_of_other_tests() -> None:
    for pid in zombies():
        os.waitpid(pid, 0)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def run(run_folder: Path) -> Iterator[Callable[[str], Handle]]:
    """Return a function that starts code as a run of the folder; `start` in it leaves a process with SLEEP."""

    handles: list[Handle] = []

    def started(code: str) -> Handle:
        sleep = SLEEP.format(str(run_folder / "sleeps"))
        command = (sys.executable, "-S", "-c", CODE + code, sleep)
        handles.append(ProcessExecutor().start(Job(command, {}, run_folder, run_folder / "log.txt")))
        return handles[-1]

    yield started
    for handle in handles:
        handle.stop(0)
        ended(handle)


def ended(handle: Handle) -> None:
    until = time.monotonic() + 30
    while handle.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_for_sleepers(folder: Path, count: int = 1) -> None:
    until = time.monotonic() + 60
    while not (folder / "sleeps").exists() or len((folder / "sleeps").read_text()) < count:
        assert time.monotonic() < until, (folder / "log.txt").read_text()
        time.sleep(0.02)


def remaining_process(folder: Path) -> psutil.Process:
    """Return the process that the run left, once those that were forked to start it have ended."""
    until = time.monotonic() + 30
    while len(found := processes_of_run(folder)) > 1 and time.monotonic() < until:
        time.sleep(0.02)
    (left,) = found
    return left


FIRST_THREAD_ENDS = """
if os.fork() == 0:
    os.setsid()
    import threading, time
    threading.Thread(target=time.sleep, args=(120,)).start()
    open("sleeps", "a").write("x")
    ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_found_named_and_ended(
    run: Callable[[str], Handle], run_folder: Path
) -> None:
    handle = run(FIRST_THREAD_ENDS)
    wait_for_sleepers(run_folder)
    ended(handle)
    left = remaining_process(run_folder)
    while left.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert ProcessId.of(left.pid).alive()
    assert processes_of_run(run_folder) == [left]
    assert variable_of(left.pid, RUN_MARK) == str(run_folder)
    (seen,) = look_at_processes(run_folder)
    assert seen.command.startswith(sys.executable)
    assert end_processes_of_run(run_folder, 0.1)
    assert not psutil.pid_exists(left.pid), "a zombie is left"


@pytest.mark.parametrize("disguise", DISGUISES)
def test_what_a_run_leaves_in_disguise_is_found_named_and_ended(
    disguise: str, run: Callable[[str], Handle], run_folder: Path
) -> None:
    handle = run(DISGUISES[disguise])
    wait_for_sleepers(run_folder)
    ended(handle)
    left = remaining_process(run_folder)
    assert variable_of(left.pid, RUN_MARK) != str(run_folder)
    (seen,) = look_at_processes(run_folder)
    assert "import signal, time" in seen.command
    assert end_processes_of_run(run_folder, 0.1)
    assert not psutil.pid_exists(left.pid), "a zombie is left"


@pytest.mark.parametrize("rank", ["\N{SUPERSCRIPT TWO}", "1" * 5000])
def test_what_a_process_says_of_its_rank_does_not_hide_it(
    rank: str, run: Callable[[str], Handle], run_folder: Path
) -> None:
    run(f"start({{'RANK': {rank!r}}}); import time; time.sleep(120)")
    wait_for_sleepers(run_folder)
    assert [seen.rank for seen in look_at_processes(run_folder)] == [None, None]


def test_while_a_run_works_its_children_are_found_without_their_mark(
    run: Callable[[str], Handle], run_folder: Path
) -> None:
    handle = run("import time; start(); time.sleep(120)")
    wait_for_sleepers(run_folder)
    assert len(processes_of_run(run_folder)) == 2
    assert handle.stop(0.1)
    assert processes_of_run(run_folder) == []


@pytest.mark.slow
def test_two_hundred_children_that_ignore_term_are_ended(run: Callable[[str], Handle], run_folder: Path) -> None:
    handle = run("""
import signal, time
signal.signal(15, signal.SIG_IGN)
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        open(os.path.join(os.getcwd(), "sleeps"), "a").write("x")
        time.sleep(120)
time.sleep(120)
""")
    wait_for_sleepers(run_folder, 200)
    began = time.monotonic()
    assert handle.stop(0.5)
    assert processes_of_run(run_folder) == []
    assert time.monotonic() - began < 20


@pytest.mark.slow
@pytest.mark.parametrize("also", ["", "os.setsid()"])
def test_a_process_that_is_always_a_new_one_is_ended(also: str, run: Callable[[str], Handle], run_folder: Path) -> None:
    handle = run(f"""
import time
if os.fork() == 0:
    os.setsid()
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if os.fork():
            os._exit(0)
        {also}
""")
    ended(handle)
    assert end_processes_of_run(run_folder, 0.1)
    time.sleep(0.2)
    assert processes_of_run(run_folder) == []
    assert zombies() == set()


def test_it_is_ended_though_no_search_of_all_processes_ever_finds_it(
    run: Callable[[str], Handle], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine each search may take longer than one of these processes lives."""
    handle = run(f"""
import time
if os.fork() == 0:
    os.setsid()
    ends = time.monotonic() + 180
    open({str(run_folder / "sleeps")!r}, "w").write("x")
    while time.monotonic() < ends:
        if os.fork():
            os._exit(0)
        os.setsid()
""")
    wait_for_sleepers(run_folder)
    ended(handle)

    def find_none(_: Path, **__: bool) -> list[psutil.Process]:
        time.sleep(0.2)
        return []

    monkeypatch.setattr("harness.host.processes.run_processes.processes_of_run", find_none)
    # Without this, a signal might hit the process by luck, in the moment between two sessions.
    monkeypatch.setattr("harness.host.processes.unmarked.os.killpg", lambda *_: None)
    monkeypatch.setattr("harness.host.processes.run_processes.ENDED_SECONDS", 60.0)
    assert end_processes_of_run(run_folder, 0.1)
    monkeypatch.undo()
    assert processes_of_run(run_folder) == []
    assert zombies() == set()


@pytest.mark.slow
def test_orphans_that_end_leave_no_zombies_while_the_run_works(run: Callable[[str], Handle], run_folder: Path) -> None:
    handle = run("""
for _ in range(300):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
start()
import time; time.sleep(120)
""")
    wait_for_sleepers(run_folder)
    assert handle.poll() is None
    assert zombies() == set()


def test_children_of_this_process_that_no_run_started_are_left_alone(
    run: Callable[[str], Handle], run_folder: Path
) -> None:
    handle = run("start()")
    ours = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
    ended_child = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(7)"])
    wait_for_sleepers(run_folder)
    ended(handle)
    try:
        assert ours.pid not in [process.pid for process in processes_of_run(run_folder)]
        assert end_processes_of_run(run_folder, 0.1)
        assert ours.poll() is None
        assert ended_child.wait() == 7
    finally:
        ours.kill()
        ours.wait()


def test_how_a_run_ended_is_not_taken_away_by_another(tmp_path: Path) -> None:
    handles = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        command = (sys.executable, "-S", "-c", "raise SystemExit(7)")
        handles.append(ProcessExecutor().start(Job(command, {}, tmp_path / name, tmp_path / name / "log.txt")))
    while len(zombies()) < 2:
        time.sleep(0.02)
    assert [handle.poll() for handle in handles] == [Exit(7), Exit(7)]


def test_of_a_run_of_which_nothing_is_known_its_mark_alone_is_looked_for(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as child:
        assert processes_of_run(tmp_path) == []
        child.communicate(b"\n")
    assert str(tmp_path) not in _runs


def test_a_stopped_run_and_its_stopped_child_are_ended(run: Callable[[str], Handle], run_folder: Path) -> None:
    handle = run("""
import signal, time
if os.fork() == 0:
    os.setsid()
    start()
    os.kill(os.getpid(), signal.SIGSTOP)
open("stops", "w").close()
os.kill(os.getpid(), signal.SIGSTOP)
""")
    wait_for_sleepers(run_folder)
    assert handle.poll() is None
    assert handle.stop(0.5)
    assert processes_of_run(run_folder) == []


def zombies() -> set[int]:
    return {
        child.pid
        for child in psutil.Process().children()
        if child.status() == psutil.STATUS_ZOMBIE and os.getsid(child.pid) != os.getsid(0)
    }


def test_what_carries_the_mark_in_a_container_of_something_else_is_not_of_the_run(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, mark = "a" * 64, str(run_folder)
    with subprocess.Popen(["/bin/sleep", "60"], env={RUN_MARK: mark}) as child:
        groups = {child.pid: f"0::/system.slice/docker-{container}.scope\n"}
        monkeypatch.setattr("harness.host.processes.unmarked._groups", lambda pid: groups.get(pid, "0::/\n"))
        monkeypatch.setattr("harness.host.processes.unmarked._runs", {})
        try:
            assert processes_of_run(run_folder) == []
            track_container(mark, "b" * 64)
            assert processes_of_run(run_folder) == []
            # For a run that another harness began, the notes name the container.
            note_containers(mark, [container])
            assert [one.pid for one in processes_of_run(run_folder)] == [child.pid]
            monkeypatch.setattr("harness.host.processes.unmarked._runs", {})
            track_container(mark, container)
            assert [one.pid for one in processes_of_run(run_folder)] == [child.pid]
        finally:
            child.kill()


def test_what_does_not_carry_the_mark_in_a_container_that_a_note_names_is_not_of_the_run(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root ends what another user's notes name, but they may name a container that is not of that user's run."""
    monkeypatch.setattr("harness.host.processes.unmarked._runs", {})
    note_containers(str(run_folder), ["a" * 64])
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        monkeypatch.setattr("harness.host.processes.unmarked._groups", lambda pid: "a" * 64 if pid == child.pid else "")
        try:
            assert processes_of_run(run_folder) == []
        finally:
            child.kill()


@pytest.mark.parametrize(("user", "owner", "counts"), [(54321, 0, False), (0, 0, True), (54321, 54321, True)])
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_as_root_a_strangers_process_that_carries_the_mark_is_not_of_the_run(
    user: int, owner: int, counts: bool, run_folder: Path
) -> None:
    """Root also ends what the runs of other users left."""
    os.chown(run_folder, owner, owner)
    with subprocess.Popen(["/bin/sleep", "60"], env={RUN_MARK: str(run_folder)}, user=user) as child:
        try:
            try:
                Path(f"/proc/{child.pid}/environ").read_bytes()
            except PermissionError:
                pytest.skip("root may not look into the processes of other users here, as in a container")
            assert ([one.pid for one in processes_of_run(run_folder)] == [child.pid]) is counts
            assert end_processes_of_run(run_folder, 0.1)
            assert (child.poll() is not None) is counts
        finally:
            child.kill()


def test_where_the_harness_is_in_a_container_so_are_its_runs(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.host.processes.unmarked._groups", lambda _: f"0::/docker/{'a' * 64}\n")
    monkeypatch.setattr("harness.host.processes.unmarked._runs", {str(run_folder): _Tracked()})
    with subprocess.Popen(["/bin/sleep", "60"], env={RUN_MARK: str(run_folder)}) as child:
        try:
            assert [one.pid for one in processes_of_run(run_folder)] == [child.pid]
        finally:
            child.kill()
