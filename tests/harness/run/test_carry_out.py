"""What is done around the processes of a run."""

import fcntl
from pathlib import Path

import pytest

from harness.run.carry_out import held_open


def test_files_that_are_held_open_cannot_be_leased(tmp_path: Path) -> None:
    """Whoever opens the data of a run would else wait for 45 seconds, as its app took a write lease."""
    data = tmp_path / "merged.csv"
    data.write_text("bars", encoding="utf-8")
    with data.open("rb") as seen_by_app:
        with held_open((str(data), str(tmp_path), str(tmp_path / "none"))), pytest.raises(BlockingIOError):
            fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
