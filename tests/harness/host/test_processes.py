import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from harness.host import processes
from harness.host.processes import BEGINNING_SECONDS, COMMAND_BYTES, command_of, environment_of
from harness.host.run_processes import _look


def test_the_variables_a_process_was_started_with_are_reported() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={"A": "1=2", "B": ""}, stdin=subprocess.PIPE)
    try:
        told = environment_of(child.pid)
    finally:
        child.communicate(b"\n")
    assert (told["A"], told["B"]) == ("1=2", "")


def test_the_variables_of_a_process_are_reported_in_the_moment_it_takes_up_a_program() -> None:
    for _ in range(300):
        with subprocess.Popen(["/bin/sleep", "60"], env={"A": "1=2"}) as child:
            try:
                assert environment_of(child.pid) == {"A": "1=2"}
            finally:
                child.kill()


def test_of_a_process_without_variables_none_are_reported_at_once() -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as child:
        try:
            began = time.monotonic()
            told = [environment_of(child.pid) for _ in range(3)]
        finally:
            child.kill()
    assert (told, time.monotonic() - began < BEGINNING_SECONDS) == ([{}] * 3, True)


def test_no_more_is_read_than_a_run_has_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path("/proc/self/environ").read_bytes()
    monkeypatch.setattr(processes, "ENVIRONMENT_BYTES", 5)
    told = environment_of(os.getpid())
    assert sum(len(f"{name}={value}") for name, value in told.items()) <= 5 < len(whole)


def test_of_a_process_that_is_gone_nothing_is_reported() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        environment_of(child.pid)


def test_no_more_is_read_of_a_command_than_is_shown() -> None:
    # 1.5 MB of it, all in one process.
    arguments = ["x" * 100_000] * 15
    with subprocess.Popen(["sh", "-c", "echo; read line", *arguments], stdin=PIPE, stdout=PIPE) as process:
        try:
            assert process.stdout
            process.stdout.read(1)
            assert len(command_of(process.pid)) == COMMAND_BYTES
            tracemalloc.start()
            looked = _look(psutil.Process(process.pid))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            process.kill()
    assert looked
    assert looked.command.startswith("sh -c echo; read line xxx")
    # A mebibyte is for its variables.
    assert peak < 2 << 20
