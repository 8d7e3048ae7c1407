"""What a save takes from the folder in place of what it packs, without an engine."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from harness.environments.docker.images import Image
from harness.registry.oci import IMAGE_MANIFEST, Descriptor, Manifest, digest_of
from harness.registry.saved import save
from harness.registry.saved.engine_archive import LAYER, EngineAnswer, Keep, _take_blob
from harness.registry.saved.layout import ImageFolder
from harness.registry.saved.saved_image import SavedImage

CONTENT = b"what is in the engine" * 100
CONFIG = json.dumps({"config": {"Labels": {}}, "rootfs": {"diff_ids": [digest_of(CONTENT)]}}).encode()


def kept_instead_of(there: bytes, further: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """Read an image whose layer a folder has, it says; return what lies there then, and how often it was compared."""
    place = ImageFolder(tmp_path / "images")
    place.make()
    blob = place.put(there, f"{LAYER}+gzip")
    document = {"config": place.put(CONFIG, "config"), "layers": [blob]}
    manifest = Manifest(json.dumps(document).encode(), IMAGE_MANIFEST)
    before = [SavedImage(f"image-{number}", manifest, CONFIG) for number in range(further)]

    def read(_engine: object, _images: object, scratch: Path, keep: Keep, _notify: object) -> EngineAnswer:
        file = scratch / "layer"
        file.write_bytes(CONTENT)
        layer = keep(file, {"mediaType": LAYER, "digest": digest_of(CONTENT), "size": len(CONTENT)})
        listed = json.dumps([{"Config": "config", "Layers": ["layer"]}]).encode()
        return EngineAnswer({"manifest.json": listed, "config": CONFIG}, {"layer": layer})

    compared: list[Descriptor] = []
    check = ImageFolder.check

    def noting(own: ImageFolder, blob: Descriptor, *others: Any) -> None:
        compared.append(blob)
        check(own, blob, *others)

    monkeypatch.setattr(ImageFolder, "check", noting)
    monkeypatch.setattr(save, "read_from_engine", read)
    image = Image("sha256:1", {}, (digest_of(CONTENT),), 1)
    made = save._read(None, place, [image], before, tmp_path, lambda _: None)  # type: ignore[arg-type]
    layer = made[image.id][0].parsed["layers"][0]
    return place.file(layer["digest"]).read_bytes(), [one["digest"] for one in compared].count(blob["digest"])


def test_a_layer_of_the_folder_is_taken_once_it_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = gzip.compress(CONTENT, 9, mtime=1)
    assert kept_instead_of(there, 3, tmp_path, monkeypatch) == (there, 1)


def test_another_layer_in_its_place_is_not_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, _ = kept_instead_of(gzip.compress(b"something else"), 1, tmp_path, monkeypatch)
    assert gzip.decompress(now) == CONTENT


def test_layers_that_are_not_wanted_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ImageFolder(tmp_path)
    monkeypatch.setattr(ImageFolder, "check", lambda *_: pytest.fail("was read"))
    monkeypatch.setattr(save, "read_from_engine", lambda *_: EngineAnswer({"manifest.json": b"[]"}))
    manifest = Manifest(json.dumps({"layers": [{"digest": digest_of(CONTENT), "size": 1}]}).encode(), "")
    assert save._read(None, place, [], [SavedImage("x", manifest, CONFIG)], tmp_path, lambda _: None) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(("content", "is_layer"), [(b'{"config": {}}', False), (b"{x}".ljust(1024, b"\0"), True)])
def test_a_layer_may_begin_as_a_text_does(content: bytes, is_layer: bool, tmp_path: Path) -> None:
    given, member = EngineAnswer(), tarfile.TarInfo("blobs/sha256/x")
    member.size = len(content)
    _take_blob(given, member, io.BytesIO(content), tmp_path, lambda _, blob: blob)
    assert (member.name in given.layers, member.name in given.texts) == (is_layer, not is_layer)
