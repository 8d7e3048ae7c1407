"""Tests of `held_open`: what the harness does around the processes of a run."""

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.environments.executors.job import Exit
from harness.run.carry_out import _run_phases, held_open
from harness.run.watch.limits import limits_of


def test_files_that_are_held_open_cannot_be_leased(tmp_path: Path) -> None:
    """With a write lease, an app would make the next process that opens the data wait for 45 seconds."""
    data = tmp_path / "merged.csv"
    data.write_text("bars", encoding="utf-8")
    with data.open("rb") as seen_by_app:
        with held_open((str(data), str(tmp_path), str(tmp_path / "none"))), pytest.raises(BlockingIOError):
            fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)


def test_so_are_files_of_folders_and_of_many_those_that_are_not_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source of a user's own program is a folder, and its data may be one."""
    source, data = tmp_path / "source", tmp_path / "data"
    data.mkdir()
    files = [source / "train.py", data / "bars.parquet"]
    for part in (source / "one", source / "two"):
        (part / "deep").mkdir(parents=True)
        (part / "deep" / "elsewhere").symlink_to("/etc")
        files.append(part / "model.py")
    os.mkfifo(source / "pipe")
    shallow = list(files)
    files += [source / part / "deep" / f"{number}" for part in ("one", "two") for number in range(40)]
    for file in files:
        file.touch()
    monkeypatch.setattr("harness.run.carry_out.getrlimit", lambda _: (40, 40))
    with held_open((str(source), str(data))):
        held = [one.resolve() for one in Path("/proc/self/fd").iterdir()]
        for file in shallow:
            with file.open("rb") as seen_by_app, pytest.raises(BlockingIOError):
                fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    # Half of the 40 files that may be open, shared equally: 10 in the first folder, and the only one in the second.
    assert len([one for one in held if one in files]) == 10 + 1
    assert not [one for one in held if one.is_relative_to("/etc")]
    with shallow[0].open("rb") as seen_by_app:
        fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)


@pytest.mark.parametrize("stopped_by", [None, "disk-limit"])
def test_nothing_more_is_started_after_a_process_that_ended_well_and_yet_too_large(stopped_by: str | None) -> None:
    class Watching:
        stopped_by: str | None = None
        ended_with = None

        def execute(self, *_: object) -> Exit:
            self.stopped_by = stopped_by
            return Exit(0)

    phases = {"features": None, "train": None}
    spec = SimpleNamespace(intent=SimpleNamespace(time_limit=9), phases=phases)
    exits = dict[str, Exit]()
    _run_phases(cast("Any", spec), cast("Any", Watching()), limits_of([], "cpu"), exits)
    assert list(exits) == (["features"] if stopped_by else ["features", "train"])


def test_a_second_process_that_runs_out_of_time_names_the_limit_of_both() -> None:
    class Watching:
        stopped_by: str | None = None
        stop_detail = ""
        ended_with = None

        def execute(self, phase: str, limit: float, _: object) -> Exit | None:
            if phase == "features":
                return Exit(0)
            self.stopped_by, self.stop_detail = "time-limit", f"still running after {limit / 3:.0f} s"
            return Exit(-9)

    phases = {"features": "features", "train": "train"}
    spec = SimpleNamespace(intent=SimpleNamespace(time_limit=900), phases=phases)
    watching = Watching()
    _run_phases(cast("Any", spec), cast("Any", watching), limits_of([], "cpu"), {})
    assert watching.stop_detail == "still running after 900 s"
