"""Tests of files that are named like checkpoints but are none; anyone who may write to the folder can make them."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from vpoc.errors import UserError
from vpoc.files import sha256
from vpoc.training.checkpoint import History, Position, last_checkpoint, set_aside, write_checkpoint


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


def packed(value: object) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def compressed(content: bytes) -> bytes:
    small = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as plain, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    return small.getvalue()


WHOLE = {"schema": 3, "identity": {}, "manner": {}, "position": {}, "history": {}, "state": {}}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"junk", pickle.dumps(Harmful()), packed(Harmful()), packed([1]), packed({}), packed({"schema": 3})),
        # A small compressed file could expand until memory is full.
        compressed(packed(WHOLE)),
    ],
)
def test_a_file_that_somebody_invented_is_reported_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"step-000000009.{sha256(content)}.pt"
    (tmp_path / name).write_bytes(content)
    told: list[str] = []
    assert last_checkpoint(tmp_path, told.append) is None
    assert told == [
        f"{tmp_path / name}: holds no checkpoint, though it is named like one; the checkpoint before it is used"
    ]
    assert not (tmp_path / "harmed").exists()


def written(folder: Path, step: int = 1) -> Path:
    return write_checkpoint(folder, {"steps_done": step}, Position(), History(), {}, {})


@pytest.mark.parametrize("linked", ["m_checkpoints", "m_checkpoints.previous"])
def test_checkpoints_behind_a_link_of_another_user_stay(
    linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = written(tmp_path / "other")
    folder = tmp_path / "m_checkpoints"
    if linked != folder.name:
        written(folder)
    (tmp_path / linked).symlink_to("other")
    if os.geteuid() == 0:
        os.chown(tmp_path / linked, 65534, 65534, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: -1)
    with pytest.raises(UserError, match="is a link of another user's"):
        set_aside(folder)
    if linked == folder.name:
        with pytest.raises(UserError, match="is a link of another user's"):
            written(folder, 2)
    assert list((tmp_path / "other").iterdir()) == [other]


def test_a_folder_of_checkpoints_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(UserError, match="permission denied"):
        last_checkpoint(tmp_path, print)


def test_what_is_in_the_place_of_an_unfinished_checkpoint_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / ".step-1.tmp").mkdir()
    assert written(tmp_path).is_file()
