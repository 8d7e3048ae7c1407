"""What is done around the processes of a run."""

import fcntl
import os
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


def test_so_are_files_of_folders_and_of_many_those_that_are_not_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the user's own has its source there, and may have a folder of data."""
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "elsewhere").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    files = [tmp_path / "train.py", deep.parent / "bars.parquet", *(deep / f"{number}" for number in range(40))]
    for file in files:
        file.touch()
    monkeypatch.setattr("harness.run.carry_out.getrlimit", lambda _: (20, 20))
    with held_open((str(tmp_path),)):
        held = [one.resolve() for one in Path("/proc/self/fd").iterdir()]
        for file in files[:2]:
            with file.open("rb") as seen_by_app, pytest.raises(BlockingIOError):
                fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    assert len([one for one in held if one in files]) == 10
    assert not [one for one in held if one.is_relative_to("/etc")]
    with files[0].open("rb") as seen_by_app:
        fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
