import os
from pathlib import Path

import pytest

from vpoc.probes.check import Check
from vpoc.probes.run_one import run_check

HERE = Path(__file__).parent


@pytest.fixture
def faulty(monkeypatch):
    """Return a function that makes a Check of a function in `faulty_checks`."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)

    def make(check, *arguments, limit=30.0, essential=False, name=None):
        return Check(
            name or check,
            "for a test",
            limit,
            f"faulty_checks:{check}",
            tuple(map(str, arguments)),
            essential=essential,
        )

    return make


@pytest.fixture
def tried(faulty):
    """Return a function that runs a check of `faulty_checks` on the CPU and returns its result."""

    def run(check, *arguments, **chosen):
        return run_check(faulty(check, *arguments, **chosen), "cpu", 1.0, lambda: False)

    return run
