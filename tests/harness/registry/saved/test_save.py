"""Tests of which contents a save takes for a layer, without an engine."""

import io
import tarfile
from pathlib import Path

import pytest

from harness.registry.saved.engine_archive import EngineAnswer, _take_blob


@pytest.mark.parametrize(("content", "is_layer"), [(b'{"config": {}}', False), (b"{x}".ljust(1024, b"\0"), True)])
def test_a_layer_may_begin_as_a_text_does(content: bytes, is_layer: bool, tmp_path: Path) -> None:
    given, member = EngineAnswer(), tarfile.TarInfo("blobs/sha256/x")
    member.size = len(content)
    _take_blob(given, member, io.BytesIO(content), tmp_path, lambda _, blob: blob)
    assert (member.name in given.layers, member.name in given.texts) == (is_layer, not is_layer)
