"""When a fault was made and when it was found."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.faults.timing import last_progress, seconds_to_find


def test_a_fault_is_not_older_than_the_last_progress_of_any_rank(tmp_path: Path, line: Callable[..., str]) -> None:
    assert last_progress(tmp_path) is None
    (tmp_path / "progress-0.jsonl").write_text(line(5.0) + line(8.0) + "half a li", encoding="utf-8")
    (tmp_path / "progress-1.jsonl").write_text(line(7.0, rank=1), encoding="utf-8")
    assert last_progress(tmp_path) == 8.0


def test_a_fault_is_found_when_evidence_begins_to_be_collected_else_when_the_run_was_over(tmp_path: Path) -> None:
    fault = time.monotonic() - 50
    assert seconds_to_find(tmp_path, fault) == pytest.approx(50, abs=1)
    (tmp_path / "failure").mkdir()
    for name, ago in (("index.json", 10), ("stacks-1.txt", 20)):
        (tmp_path / "failure" / name).touch()
        os.utime(tmp_path / "failure" / name, (time.time() - ago,) * 2)
    assert seconds_to_find(tmp_path, fault) == pytest.approx(30, abs=1)
