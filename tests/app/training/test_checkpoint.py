"""Tests of files that are named like checkpoints but are none; anyone who may write to the folder can make them."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from vpoc.files import sha256
from vpoc.training.checkpoint import last_checkpoint


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
