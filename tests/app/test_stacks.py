import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks.processes import until

BEGIN = """
import ctypes, os, sys, threading, time
from pathlib import Path
from vpoc import stacks
stacks.QUIET_S = 0.4
path = Path(sys.argv[1])
"""


@contextmanager
def running(code, path):
    """Yield a process that runs `code`, once the process has printed that it is ready."""
    words = [sys.executable, "-c", BEGIN + code, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def written(path, word, times=1):
    return until(lambda: path.exists() and path.read_text().count(word) >= times, 10)


def test_a_signal_is_answered_with_the_stacks_of_all_threads_and_the_work_goes_on(tmp_path):
    path = tmp_path / "stacks-0.txt"
    path.write_text("of an earlier process")
    code = """
def in_a_thread(): time.sleep(60)
threading.Thread(target=in_a_thread, daemon=True).start()
stacks.listen(path)
def at_work():
    print("ready", flush=True)
    time.sleep(60)
at_work()
"""
    with running(code, path) as process:
        for times in (1, 2):
            process.send_signal(signal.SIGUSR1)
            assert written(path, "in at_work", times)
            assert written(path, "in in_a_thread", times)
        assert "earlier" not in path.read_text()
        assert process.poll() is None


def test_a_call_that_holds_the_lock_of_the_interpreter_hides_nothing(tmp_path):
    path = tmp_path / "stacks-0.txt"
    code = """
stacks.listen(path)
print("ready", flush=True)
lock = ctypes.create_string_buffer(64)
def in_c():
    for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(lock)
stacks.progressed()
in_c()
"""
    with running(code, path) as process:
        # The process prints `ready` shortly before it holds the lock.
        time.sleep(1)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        assert path.read_text() == ""
        process.send_signal(signal.SIGUSR2)
        assert written(path, "in in_c")
        assert process.poll() is None


@pytest.mark.parametrize(
    ("quiet", "rounds", "then", "times"),
    # The first case has a long limit, because a busy machine may stall for a second.
    [(2, 80, "stacks.progressed(); time.sleep(0.05)", 0), (0.4, 25, "time.sleep(0.05)", 2)],
)
def test_stacks_come_when_progress_does_not(tmp_path, quiet, rounds, then, times):
    path = tmp_path / "stacks-0.txt"
    code = f"""
stacks.QUIET_S = {quiet}
stacks.listen(path)
stacks.progressed()
print("ready", flush=True)
for _ in range({rounds}): {then}
stacks.finished()
print(path.read_text().count("No progress for {quiet} s"), flush=True)
time.sleep(2.5 * {quiet})
print(path.read_text().count("No progress for {quiet} s"), flush=True)
"""
    with running(code, path) as process:
        at_the_end, later = map(int, process.stdout.read().split())
    assert at_the_end == later
    assert (at_the_end >= times) if times else (at_the_end == 0)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [pytest.param(False, marks=pytest.mark.long), True])
def test_to_write_them_ends_no_process_whose_stacks_change(tmp_path, asked):
    """If stacks were read while they change, the process would die of SIGSEGV within seconds."""
    path = tmp_path / "stacks-0.txt"
    code = f"""
stacks.QUIET_S = {100 if asked else 0.002}
stacks.listen(path)
stacks.progressed()
print("ready", flush=True)
def deep(n): return deep(n - 1) if n else 0
class Chain:
    def __init__(self, n): self.next = Chain(n - 1) if n else None
    def __del__(self): deep(3)
def work():
    while time.monotonic() < end:
        deep(300)
        Chain(60)
end = time.monotonic() + 4
beside = threading.Thread(target=work)
beside.start()
work()
beside.join()
stacks.finished()
"""
    with running(code, path) as process:
        # An interpreter that is shutting down has no handlers any more, so signals stop before.
        until = time.monotonic() + (3 if asked else 0)
        while time.monotonic() < until and process.poll() is None:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.002)
        assert process.wait(30) == 0
    assert path.read_text().count("in work") > 20


def busy(first_call, seconds):
    """Run two threads whose stacks change all the time."""
    first_call(0)
    until = time.monotonic() + seconds
    beside = threading.Thread(target=call_down, args=(until,))
    beside.start()
    call_down(until)
    beside.join()


def call_down(until):
    def deep(n):
        return deep(n - 1) if n else 0

    while time.monotonic() < until:
        deep(300)


@pytest.mark.slow
def test_a_busy_worker_is_not_ended_by_being_asked(tmp_path):
    path = tmp_path / "stacks-0.txt"
    code = f"""
sys.path[:0] = {str(Path(__file__).parent)!r},
import multiprocessing, signal
import test_stacks
stacks.listen(path)
with stacks.in_workers() as first_call:
    worker = multiprocessing.get_context("fork").Process(target=test_stacks.busy, args=(first_call, 3))
    worker.start()
print("ready", flush=True)
time.sleep(0.5)
for _ in range(200):
    os.kill(worker.pid, signal.SIGUSR1)
    time.sleep(0.01)
worker.join()
print(worker.exitcode, path.read_text().count("in call_down") > 20, flush=True)
"""
    with running(code, path) as process:
        assert process.stdout.read() == "0 True\n"


def work(first_call, ready):
    time.sleep(0.5)
    if first_call is not None:
        first_call(0)
    ready.wait(30)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_writes_to_the_same_file_however_it_was_started(tmp_path, method):
    """A signal that comes before the worker can answer waits; afterwards the worker answers at once."""
    path = tmp_path / "stacks-0.txt"
    code = f"""
sys.path[:0] = {str(Path(__file__).parent)!r},
import multiprocessing, signal
import test_stacks
stacks.listen(path)
context = multiprocessing.get_context({method!r})
ready = context.Event()
with stacks.in_workers() as first_call:
    worker = context.Process(target=test_stacks.work, args=(first_call, ready))
    worker.start()
assert not {{signal.SIGUSR1, signal.SIGUSR2}} & signal.pthread_sigmask(signal.SIG_BLOCK, ())
os.kill(worker.pid, signal.SIGUSR1)
print("ready", flush=True)
while "in work" not in path.read_text(): time.sleep(0.05)
time.sleep(0.5)
before = path.read_text().count("in work")
os.kill(worker.pid, signal.SIGUSR1)
while path.read_text().count("in work") == before: time.sleep(0.05)
ready.set()
worker.join()
written = path.read_text()
signal.raise_signal(signal.SIGUSR1)
while path.read_text().count("most recent call first") == written.count("most recent call first"): time.sleep(0.05)
assert path.read_text().startswith(written) and len(path.read_text()) > len(written)
print(worker.exitcode, flush=True)
"""
    with running(code, path) as process:
        assert process.stdout.read() == "0\n"


def test_without_a_file_workers_are_started_as_ever(tmp_path):
    code = """
import signal
with stacks.in_workers() as first_call:
    assert first_call is None
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
stacks.progressed()
print("ready", flush=True)
"""
    with running(code, tmp_path / "none") as process:
        assert process.wait(10) == 0


def test_a_handler_that_somebody_else_has_set_is_replaced(tmp_path):
    path = tmp_path / "stacks-0.txt"
    code = """
import signal
stacks.listen(path.with_name("earlier"))
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
stacks.listen(path)
print("ready", flush=True)
signal.raise_signal(signal.SIGUSR1)
time.sleep(60)
"""
    with running(code, path):
        assert written(path, "most recent call first")
