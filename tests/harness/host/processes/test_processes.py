import subprocess
import sys
import time
import tracemalloc
from subprocess import PIPE
from types import SimpleNamespace

import psutil
import pytest

from harness.host.processes import processes
from harness.host.processes.processes import BEGINNING_SECONDS, COMMAND_BYTES, command_of, variable_of
from harness.host.processes.run_processes import _look


def test_the_variables_a_process_was_started_with_are_reported() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={"A": "1=2", "B": ""}, stdin=subprocess.PIPE)
    try:
        told = [variable_of(child.pid, name) for name in ("A", "B", "C", "1")]
    finally:
        child.communicate(b"\n")
    assert told == ["1=2", "", None, None]


def test_the_variables_of_a_process_are_reported_in_the_moment_it_takes_up_a_program() -> None:
    for _ in range(300):
        with subprocess.Popen(["/bin/sleep", "60"], env={"A": "1=2"}) as child:
            try:
                assert variable_of(child.pid, "A") == "1=2"
            finally:
                child.kill()


def test_of_a_process_without_variables_none_are_reported_at_once() -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as child:
        try:
            began = time.monotonic()
            told = [variable_of(child.pid, "A") for _ in range(3)]
        finally:
            child.kill()
    assert (told, time.monotonic() - began < BEGINNING_SECONDS) == ([None] * 3, True)


def test_no_more_is_read_than_a_run_has_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={"A": "12345", "B": ""}) as child:
        try:
            assert variable_of(child.pid, "B") == ""
            monkeypatch.setattr(processes, "ENVIRONMENT_BYTES", 5)
            assert (variable_of(child.pid, "A"), variable_of(child.pid, "B")) == ("123", None)
        finally:
            child.kill()


def test_of_many_variables_nothing_is_made_but_the_one() -> None:
    many = {f"{number:x}": "" for number in range(20_000)}
    with subprocess.Popen(["/bin/sleep", "60"], env={"A": "1", **many}) as child:
        try:
            # On a busy machine a program with so many variables may start later than `variable_of` waits.
            until = time.monotonic() + 60
            while variable_of(child.pid, "A") is None and time.monotonic() < until:
                time.sleep(0.01)
            assert variable_of(child.pid, "A") == "1"
            tracemalloc.start()
            variable_of(child.pid, "A")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            child.kill()
    # Enough for the bytes of the file; an object for each variable would take some hundred bytes.
    assert peak < 1 << 20


def test_of_a_process_that_is_gone_nothing_is_reported() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        variable_of(child.pid, "A")


def test_no_more_is_read_of_a_command_than_is_shown() -> None:
    # The command of the process has 1.5 MB.
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
    # The limit includes a mebibyte for the variables of the process.
    assert peak < 2 << 20


def test_a_process_that_takes_long_to_begin_its_program_is_waited_for_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, begins = [0.0], 4.0

    def sleep(seconds: float) -> None:
        clock[0] += seconds * 100

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(processes, "_begins_program", lambda _: True)
    monkeypatch.setattr(processes, "_environ", lambda _: b"A=1\0" if clock[0] >= begins else b"")
    assert variable_of(1, "A") == "1"
    clock[0], begins = 0.0, 1e9
    assert variable_of(1, "A") is None
    assert clock[0] < 10
