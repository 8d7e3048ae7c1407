import os
from pathlib import Path

import pytest

from harness.evidence.index_file import OWNER, index_file


def test_each_results_folder_has_its_own_and_keeps_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    assert index_file(one) == index_file(one) != index_file(other)
    assert not list(one.iterdir())


def test_that_of_a_folder_that_is_gone_is_removed(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    gone.mkdir()
    here.mkdir()
    left = index_file(gone)
    left.touch()
    gone.rmdir()
    index_file(here)
    assert not left.parent.exists()


def test_without_a_home_that_can_be_written_it_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    assert index_file(tmp_path).is_relative_to(tmp_path / "temporary")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_temporary_place_that_another_user_has_taken_is_passed_over_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usual = index_file(tmp_path).parent
    (usual / OWNER).unlink()
    # Nothing may be written through the other user's link, and no index of theirs may be read.
    (usual / OWNER).symlink_to(tmp_path / "written")
    os.chown(usual.parent, 65533, 65533)
    mine = index_file(tmp_path)
    assert mine == index_file(tmp_path)
    assert not mine.is_relative_to(usual.parent)
    assert mine.parent.stat().st_uid == os.geteuid()
    assert not (tmp_path / "written").exists()
