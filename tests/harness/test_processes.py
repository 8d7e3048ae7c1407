import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import processes
from harness.processes import environment_of


def test_the_variables_a_process_was_started_with_are_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], env={"A": "1=2", "B": ""}, stdin=subprocess.PIPE)
    try:
        told = environment_of(child.pid)
    finally:
        child.communicate(b"\n")
    assert (told["A"], told["B"]) == ("1=2", "")


def test_no_more_is_read_than_a_run_has_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path("/proc/self/environ").read_bytes()
    monkeypatch.setattr(processes, "ENVIRONMENT_BYTES", 5)
    told = environment_of(os.getpid())
    assert sum(len(f"{name}={value}") for name, value in told.items()) <= 5 < len(whole)


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        environment_of(child.pid)
