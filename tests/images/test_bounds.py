"""Tests, on a real engine, that a container uses no more of the host than it may, and that nothing of it is left."""

import os
import re
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.environments.executors.bounded_log import HEAD_BYTES, TAIL_BYTES
from harness.environments.executors.container import Container
from harness.environments.executors.job import Exit, Handle
from harness.evidence.app_reports.last_line import last_line
from harness.host.processes.processes import variable_of
from harness.host.processes.run_processes import RUN_MARK, end_processes_of_run, processes_of_run

RunCode = Callable[..., tuple[Exit, str]]
Start = Callable[..., Handle]

FORKS = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""
LOUD = """
import sys
print("the beginning", flush=True)
for _ in range({megabytes}):
    sys.stdout.write(("x" * 99 + "\\n") * 10_000)
print("the end")
"""
LEFT_OUT = re.compile(r"\.\.\. (at least [\d,]+|[\d,]+|an unknown number of) bytes left out.* \.\.\.\n")
# An orphan of the container's first process, in a session of its own and without the run's mark.
HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["[kworker]", "-S", "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_fork_loop_ends_at_the_limit_of_its_container(run_code: RunCode, container: Container) -> None:
    exit_, text = run_code(FORKS, container=replace(container, pids=200))
    assert exit_.ok
    count, why = re.fullmatch(r"(\d+) (.*)\n", text).groups()  # type: ignore[union-attr]
    # The container's init process and the program itself count as well.
    assert (int(count), why) == (198, "Resource temporarily unavailable")


# More output than the engine keeps: the engine stores 172 bytes for a line of a hundred.
@pytest.mark.parametrize("megabytes", [44, pytest.param(2000, marks=pytest.mark.long)])
def test_output_faster_than_it_is_read_takes_little_memory_and_time(megabytes: int, start: Start, folder: Path) -> None:
    handle = start(LOUD.format(megabytes=megabytes))
    ends = None
    while handle.poll() is None:
        # poll() first learns from the engine that the container has ended, and then reads the rest of the output.
        ends = time.monotonic()
        time.sleep(0.05)
    assert ends is not None
    assert time.monotonic() - ends < 60
    log = folder / "log.txt"
    assert log.stat().st_size < HEAD_BYTES + TAIL_BYTES + 1000
    with log.open() as stream:
        assert next(stream) == "the beginning\n"
        assert any(LEFT_OUT.fullmatch(line) for line in stream)
    assert last_line(log) == "'the end'"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 < 400 << 20


def test_a_process_of_a_container_is_found_without_its_mark_and_goes_with_it(start: Start, folder: Path) -> None:
    handle = start(HIDES)
    until = time.monotonic() + 60
    while "ready" not in (folder / "log.txt").read_text():
        assert time.monotonic() < until
        time.sleep(0.1)
    # The init process that the engine adds, the app's process and the hidden one.
    found = processes_of_run(folder)
    hidden = [process for process in found if variable_of(process.pid, RUN_MARK) is None]
    assert [process.cmdline()[0] for process in hidden] == ["[kworker]"]
    assert len(found) == 3
    assert handle.stop(0.5)
    assert not any(Path(f"/proc/{process.pid}").exists() for process in found)


def test_where_its_engine_cannot_end_it_it_is_ended_from_outside(start: Start, folder: Path) -> None:
    start(HIDES)
    until = time.monotonic() + 60
    while len(found := processes_of_run(folder)) < 3:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert os.getpid() not in [process.pid for process in found]
    assert end_processes_of_run(folder, 0.5)
    assert not any(process.is_running() for process in found)
