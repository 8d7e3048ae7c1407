"""Tests of the temporary folder of a run, whose name every user of the host can guess."""

import os
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.files import tree_removal
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.temporary_folder import LONGEST, make_temporary_folder, remove_place, temporary_folder_of


def test_what_a_run_left_goes_and_nobody_else_can_take_its_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make_places()
    try:
        # Kept open, so that no other folder gets its inode number.
        before = os.open(folder.temporary, os.O_RDONLY)
        (folder.temporary / "left" / "below").mkdir(parents=True)
        folder.temporary.chmod(0)
        folder.make_verifying()
        assert os.path.samestat(folder.temporary.stat(), os.fstat(before))
        os.close(before)
        assert list(folder.temporary.iterdir()) == []
        assert folder.temporary.stat().st_mode & 0o777 == 0o700
        folder.temporary.rmdir()
        folder.temporary.symlink_to(tmp_path)
        folder.make_verifying()
        assert not folder.temporary.is_symlink()
    finally:
        folder.remove_places(all_of_it=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_name_that_another_user_has_taken_is_passed_over(tmp_path: Path) -> None:
    usual = temporary_folder_of(tmp_path)
    usual.mkdir()
    try:
        assert temporary_folder_of(tmp_path) == usual
        os.chown(usual, 65533, 65533)
        other = temporary_folder_of(tmp_path)
        assert (other.parent, other.exists(), len(other.name)) == (usual.parent, False, len(usual.name))
        os.chown(tmp_path, 65533, 65533)
        assert temporary_folder_of(tmp_path) == usual, "root closes the run of another user"
    finally:
        usual.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_the_place_that_the_processes_get_is_never_another_users(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    told = folder.temporary
    told.mkdir()
    os.chown(told, 65533, 65533)
    try:
        # Root takes it back; any other user is refused.
        folder.make_places()
        assert told.stat().st_uid == os.geteuid()
    finally:
        folder.remove_places(all_of_it=False)
        remove_place(told)


def test_one_that_something_goes_on_to_fill_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, unlink, removed = tmp_path / "place", os.unlink, list[str]()

    def filled_again(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        removed.append(name)
        assert len(removed) < 100
        (place / f"file-{len(removed)}").touch()

    make_temporary_folder(place)
    (place / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr(tree_removal, "LONGEST_SECONDS", 0.0)
        patch.setattr(os, "unlink", filled_again)
        with pytest.raises(UserError, match="cannot be made"):
            make_temporary_folder(place)
    assert remove_place(place) is None


def test_it_is_elsewhere_under_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "long" * 20)
    place = temporary_folder_of(tmp_path)
    assert len(str(place)) <= LONGEST
    assert tmp_path not in place.parents
