import os
import stat
from pathlib import Path
from typing import Any

import pytest

from harness.base.files import group_sharing
from harness.base.files.tree_removal import opened_folder


def share_below(folder: Path) -> None:
    with opened_folder(folder) as opened:
        group_sharing.share_below(opened)


def test_a_folder_that_cannot_be_opened_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    real = os.open

    def refusing(path: Any, *others: Any, **options: Any) -> int:
        # Simulated, because root may open every folder.
        if path == "closed":
            raise PermissionError(13, "Permission denied", path)
        return real(path, *others, **options)

    monkeypatch.setattr(os, "open", refusing)
    # The mode cannot be changed, as if the folder belonged to another user.
    monkeypatch.setattr(group_sharing, "change_mode", lambda *_: None)
    with pytest.raises(PermissionError):
        share_below(tmp_path)


def test_what_is_ones_own_is_shared_and_what_has_another_name_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "below").mkdir(parents=True, mode=0o700)
    for name in ("file", "other"):
        (folder / "below" / name).touch(0o600)
    os.link(folder / "below" / "other", tmp_path / "elsewhere")
    share_below(folder)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.rglob("*")}
    assert modes == {"below": 0o770, "file": 0o660, "other": 0o600}
