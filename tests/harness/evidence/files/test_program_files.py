"""Tests of the files that a user's own program left, and of how the next attempt takes them over."""

import os
import time
from pathlib import Path
from unittest import mock

from harness.evidence.files.program_files import TakenOver, checkpoints, take_over, written_files
from harness.evidence.files.work_folder import WorkFolder


def work_with(folder: Path, *names: str) -> WorkFolder:
    """Return a work folder with these files, each newer than the one before."""
    for name in names:
        file = folder / "program" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"1")
        # Kernels take the time of a file from a clock that ticks up to 100 times a second.
        time.sleep(0.02)
    return WorkFolder(folder)


def test_files_and_folders_match_a_pattern_the_newest_last(tmp_path: Path) -> None:
    work = work_with(tmp_path, "out/b-9/weights", "out/b-10/weights", "out/b-9/state", "out/b.pt", "log.txt")
    (tmp_path / "program/out/b-11").symlink_to("/")
    assert checkpoints(work, "out/b-*") == ("out/b-10", "out/b-9")
    assert checkpoints(work, "out/*.pt") == ("out/b.pt",)
    assert checkpoints(work, "*.pt") == ()
    assert checkpoints(work, None) == ("log.txt",)
    assert checkpoints(WorkFolder(tmp_path / "none"), None) == ()


def test_a_name_that_is_no_text_matches_no_pattern(tmp_path: Path) -> None:
    work = work_with(tmp_path, "b-1", "b-\udcff", "b-2/\udcff")
    assert checkpoints(work, "b-*") == ("b-1", "b-2")


def test_each_folder_is_opened_once_however_deep(tmp_path: Path) -> None:
    deep = "/".join("d" * 50)
    work = work_with(tmp_path, f"{deep}/a", "b")
    with mock.patch("os.open", wraps=os.open) as opened:
        assert {one.name for one in written_files(work)} == {f"{deep}/a", "b"}
    assert opened.call_count < 3 * 50 + 10


def test_a_place_is_moved_as_a_whole_once_without_what_is_left_out(tmp_path: Path) -> None:
    before = work_with(tmp_path / "a", "out/b-1/weights", "out/b-2/weights")
    (tmp_path / "b").mkdir()
    after = WorkFolder(tmp_path / "b")
    for _ in range(2):
        take_over(TakenOver(before, "out/b-1", ("out/b-2",)), after, tmp_path / "left-out")
    assert [one.name for one in written_files(after)] == ["out/b-1/weights"]
    # It may have been sound after all.
    assert (tmp_path / "left-out/out_b-2/weights").is_file()
    assert not (tmp_path / "a/program").exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/program").symlink_to(tmp_path / "other")
    take_over(TakenOver(WorkFolder(tmp_path / "a"), None), WorkFolder(tmp_path / "b"), tmp_path / "left-out")
    assert not (tmp_path / "b/program").exists()
    assert checkpoints(WorkFolder(tmp_path / "a"), None) == ()
