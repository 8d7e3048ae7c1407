import os
import stat
from pathlib import Path

import pytest

from harness.base.files import set_id
from harness.base.files.set_id import MOST_LEVELS
from harness.base.files.tree_removal import opened_folder


def made(file: Path, mode: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    file.chmod(mode)
    return file


def remove_set_id(folder: Path) -> None:
    with opened_folder(folder) as opened:
        set_id.remove_set_id(opened)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_no_file_acts_as_its_owner_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, outside = tmp_path / "work", made(tmp_path / "outside", 0o4755)
    files = [made(work / "a", 0o4755), made(work / "b" / "c", 0o2711), made(work / "d", 0o640)]
    (work / "link").symlink_to(outside)
    (work / "hard-link").hardlink_to(outside)
    # A folder that is closed even to its owner must not stop this: the run would have no readable record.
    (work / "b").chmod(0)
    remove_set_id(work)
    assert list(map(mode, [*files, work / "b"])) == [0o755, 0o711, 0o640, 0o700]
    assert (mode(outside), (work / "hard-link").exists()) == (0o4755, False)
    made(work / "a", 0o4755)
    # A file of another user is removed also if it no longer has another name.
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    remove_set_id(work)
    assert not (work / "a").exists()


def test_what_is_too_deep_or_a_link_is_reported(tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * (MOST_LEVELS + 1))).mkdir(parents=True)
    with pytest.raises(OSError, match="too deep"):
        remove_set_id(tmp_path / "d")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        remove_set_id(tmp_path / "link")
