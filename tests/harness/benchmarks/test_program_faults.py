"""Faults in programs of the user's own: the list, one of them for real, and the page."""

import sys
from pathlib import Path

import pytest

from benchmarks.program_faults import FAULTS, Seen, inject, section
from harness.environments.environment import Environment
from harness.environments.python import programs
from harness.matrix.cells import Matrix


def test_there_are_twenty_different_ones() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20


def test_one_is_called_what_it_is(tmp_path: Path, matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path / "programs")
    (fault,) = (one for one in FAULTS if one.name == "`abort()`")
    seen = inject(fault, tmp_path / "place", matrix, Environment(Path(sys.executable), {"lock": "l"}, {}, "cpu"))
    assert seen.right, seen.record.detail
    wrong = Seen(fault, seen.record, 1)
    text = "\n".join(section([seen, wrong], "Written today."))
    assert "Written today. 1 of 2 faults were reported as what they are; 1 processes were left running." in text
    assert f"| `abort()` | failed (crash) | crash | 1 | {seen.record.seconds:.1f} | no |" in text
