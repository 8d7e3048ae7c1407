"""Tests of how the stacks of real processes are taken; test_confirm.py tests how they confirm a hang."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.evidence.app_reports.python_stacks import Frame
from harness.evidence.files.work_folder import WorkFolder
from harness.host.processes.run_processes import RUN_MARK, is_of_run, look_at_processes, run_mark, table
from harness.run.watch.python_stacks import (
    ProcessStacks,
    innermost_own_frame,
    may_wait_for_others,
    take_stacks,
    waits_for_others,
)

LISTENS = """
import faulthandler, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1, open(f"stacks-{sys.argv[1]}.txt", "ab", 0))
def beside(): time.sleep(60)
def inner(): open(f"ready-{sys.argv[1]}", "w"); time.sleep(60)
threading.Thread(target=beside, daemon=True).start()
inner()
"""
HOLDS_LOCK = """
import ctypes, faulthandler, signal
signal.signal(signal.SIGUSR1, print)
faulthandler.register(signal.SIGUSR2, open("stacks-0.txt", "ab", 0))
def inner():
    open("ready-0", "w")
    lock = ctypes.create_string_buffer(64)
    for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(lock)
inner()
"""
LATE = """
import signal, threading, time
def tell():
    while True:
        open("stacks-1.txt", "a").write("of another\\n") if signalled else None
        time.sleep(0.05)
signalled = []
signal.signal(signal.SIGUSR1, lambda *_: signalled.append(1))
threading.Thread(target=tell, daemon=True).start()
open("ready-0", "w")
while True: time.sleep(0.05)
"""
DEAF = "open('ready-deaf', 'w'); import time; time.sleep(60)"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts Python code as a process of the run in `tmp_path` and waits until it is ready."""
    started = []

    def start(code: str, name: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.defpath, RUN_MARK: run_mark(tmp_path), **variables}
        process = subprocess.Popen([sys.executable, "-c", code, name], env=environment, cwd=tmp_path)
        started.append(process)
        until = time.monotonic() + 30
        while not (tmp_path / f"ready-{name}").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_each_process_that_listens_tells_the_stacks_of_its_threads_and_no_other_is_signalled(
    tmp_path: Path, start: Start
) -> None:
    zero, one, deaf = start(LISTENS, "0", RANK="0"), start(LISTENS, "1", RANK="1"), start(DEAF, "deaf")
    sample = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path))
    assert {(told.pid, told.rank) for told in sample.stacks} == {(zero.pid, 0), (one.pid, 1)}
    for told in sample.stacks:
        beside, main = told.threads
        assert [frame.function for frame in main] == ["inner", "<module>"]
        assert beside[0].function == "beside"
        assert told.main == main
    time.sleep(0.1)
    assert deaf.poll() is None
    (silence,) = sample.silence
    assert re.fullmatch(rf"process {deaf.pid} \(.+\) gave no stack: it does not catch SIGUSR1, .+", silence)
    assert f"rank 1, process {one.pid}:\n" in sample.text


def test_one_that_holds_the_lock_of_the_interpreter_is_asked_without_it(tmp_path: Path, start: Start) -> None:
    start(HOLDS_LOCK, "0")
    (told,) = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path)).stacks
    assert [frame.function for frame in told.main] == ["inner", "<module>"]


def test_an_interpreter_that_ends_is_asked_only_by_what_it_catches_still(tmp_path: Path, start: Start) -> None:
    ends = start(LISTENS.replace("SIGUSR1", "SIGUSR2"), "0")
    (told,) = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path)).stacks
    assert told.main[0].function == "inner"
    time.sleep(0.1)
    assert ends.poll() is None


def test_of_all_answers_together_no_more_is_kept_than_a_run_has_stacks(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.python_stacks.MOST_BYTES_OF_ALL", 100)
    zero, _ = start(LISTENS, "0", RANK="0"), start(LISTENS, "1", RANK="1")
    (told,) = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path)).stacks
    assert (told.pid, len(told.text)) == (zero.pid, 100)


def test_a_late_answer_of_another_rank_is_not_taken_for_this_ones(tmp_path: Path, start: Start) -> None:
    start(LISTENS, "1", RANK="1")
    start(LATE, "0", RANK="0")
    told = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path)).stacks
    assert {(one.rank, one.main[0].function) for one in told} == {(1, "inner")}


def test_the_same_place_has_the_same_fingerprint_and_one_that_told_nothing_has_none(
    tmp_path: Path, start: Start
) -> None:
    start(LISTENS, "0")
    first, second = (take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path)) for _ in range(2))
    assert first.fingerprint(0) == second.fingerprint(0) is not None
    assert first.fingerprint(1) is None
    (tmp_path / "position-0.bin").write_bytes(bytes(16))
    third = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path))
    assert third.fingerprint(0) != second.fingerprint(0)


def test_a_stopped_process_is_not_waited_for(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(LISTENS, "0")
    process.send_signal(signal.SIGSTOP)
    while look_at_processes(tmp_path)[0].state != "T":
        time.sleep(0.01)
    monkeypatch.setattr("harness.run.watch.python_stacks.ANSWER_SECONDS", 60.0)
    began = time.monotonic()
    sample = take_stacks(WorkFolder(tmp_path), look_at_processes(tmp_path))
    assert time.monotonic() - began < 30
    assert sample.stacks == ()
    assert "it is stopped (state T)" in sample.text


def test_processes_of_the_run_are_seen_from_outside(tmp_path: Path, start: Start) -> None:
    process = start(LISTENS, "0", RANK="0")
    # The process reports that it is ready just before it sleeps, so its state is read until it does.
    until = time.monotonic() + 30
    while (seen := look_at_processes(tmp_path)[0]).state != "S" and time.monotonic() < until:
        time.sleep(0.01)
    assert (seen.pid, seen.inner_pid, seen.rank, seen.catches, seen.threads) == (process.pid, process.pid, 0, True, 2)
    assert seen.state == "S"
    assert seen.rss_bytes > 1 << 20
    assert is_of_run(process.pid, tmp_path)
    assert not is_of_run(process.pid, tmp_path / "another")
    assert not is_of_run(os.getpid(), tmp_path)
    heading, line = table([seen]).splitlines()
    assert heading.split()[:2] == ["PID", "IN"]
    assert line.split()[:4] == [str(process.pid), str(process.pid), "0", "S"]


def text(*frames: str) -> str:
    lines = "".join(f'  File "{frame.partition(":")[0]}", line 7 in {frame.partition(":")[2]}\n' for frame in frames)
    return f"Current thread 0x00007f (most recent call first):\n{lines}"


SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frames", "waits", "may_wait"),
    [
        ([f"{SITE}/torch/distributed/distributed_c10d.py:all_reduce", f"{SITE}/vpoc/training/loop.py:_step"], 1, 1),
        (["/usr/lib/python3.11/socket.py:recv", f"{SITE}/vpoc/ranks/exchange.py:_wait"], 1, 1),
        ([f"{SITE}/torch/autograd/graph.py:_engine_run_backward", f"{SITE}/vpoc/training/loop.py:_step"], 0, 1),
        ([f"{SITE}/vpoc/training/faults/effects.py:hang", f"{SITE}/torch/distributed/distributed_c10d.py:x"], 0, 0),
        ([f"{SITE}/torch/nn/parallel/distributed.py:forward"], 0, 0),
        ([], 0, 0),
    ],
)
def test_who_waits_for_others_is_recognised_by_the_innermost_frame(
    frames: list[str], waits: int, may_wait: int
) -> None:
    main = ProcessStacks(1, 0, text(*frames)).main
    assert (waits_for_others(main), may_wait_for_others(main)) == (bool(waits), bool(may_wait))


def test_of_calls_in_pythons_own_library_the_caller_is_shown() -> None:
    frames = ["/usr/lib/python3.11/threading.py:wait", "<frozen runpy>:run", f"{SITE}/vpoc/x.py:mine", f"{SITE}/y.py:z"]
    assert innermost_own_frame(ProcessStacks(1, 0, text(*frames)).main) == Frame(f"{SITE}/vpoc/x.py", 7, "mine")
    assert innermost_own_frame(ProcessStacks(1, 0, text(*frames[:1])).main) == Frame(frames[0][:-5], 7, "wait")
