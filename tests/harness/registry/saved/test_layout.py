"""Tests of a folder of saved images, without an engine: contents that no save writes are refused."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.files.storage import PIECE_BYTES
from harness.environments.docker.images import PREFIX
from harness.registry.oci import EMPTY, EMPTY_TYPE, IMAGE_MANIFEST, Manifest, digest_of
from harness.registry.saved import layout
from harness.registry.saved.engine_archive import LAYER
from harness.registry.saved.layout import LARGEST_TEXT, ImageFolder
from harness.registry.saved.saved_image import SavedImage

PLAIN = b"a layer" * 1000
NAMES = ("cpu-no-sdma", "cpu-plain")
Document = dict[str, Any]


def nothing(_: Document) -> None:
    """Change nothing."""


def put_image(
    place: ImageFolder,
    name: str,
    change_manifest: Callable[[Document], object] = nothing,
    change_configuration: Callable[[Document], object] = nothing,
) -> SavedImage:
    """Put an image with a layer of its own and a signed statement; `change_*` may alter its documents."""
    plain = PLAIN + name.encode()
    configuration: Document = {
        "config": {"Labels": {f"{PREFIX}.cell": name}},
        "rootfs": {"diff_ids": [digest_of(plain)]},
    }
    change_configuration(configuration)
    config = json.dumps(configuration).encode()
    layers = [place.put(gzip.compress(plain, mtime=0), f"{LAYER}+gzip")]
    document = {"mediaType": IMAGE_MANIFEST, "config": place.put(config, "config"), "layers": layers}
    change_manifest(document)
    manifest = Manifest(json.dumps(document).encode(), IMAGE_MANIFEST)
    content = {"artifactType": "bundle", "subject": manifest.descriptor, "layers": [], "annotations": {"name": name}}
    artifact = Manifest(json.dumps({**content, "config": place.put(EMPTY, EMPTY_TYPE)}).encode(), IMAGE_MANIFEST)
    for one in (manifest, artifact):
        place.put(one.content, one.media_type)
    return SavedImage(name, manifest, config, (artifact,))


@pytest.fixture
def place(tmp_path: Path) -> ImageFolder:
    """Return a folder with two images."""
    place = ImageFolder(tmp_path / "images")
    place.make()
    place.write_index([put_image(place, name) for name in NAMES])
    return place


def test_a_place_that_is_no_folder_is_not_to_be_saved_again(place: ImageFolder, tmp_path: Path) -> None:
    for wrong in (tmp_path / "none", place.folder / "index.json"):
        with pytest.raises(UserError, match="no such folder; give the one that `matrix save` wrote"):
            ImageFolder(wrong).images()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no images were saved here, or not to the end: No such file"):
        ImageFolder(tmp_path / "empty").images()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["layers"][0].pop("digest"),
        lambda document: document["layers"][0].update(digest="../../x"),
        lambda document: document["layers"][0].update(size="7"),
        lambda document: document.update(layers=[1]),
        lambda document: document.update(layers={}),
        lambda document: document["layers"].append(document["layers"][0]),
        lambda document: document.update(config=[]),
        lambda document: document.update(annotations=[1]),
    ],
)
def test_a_manifest_that_no_save_writes_is_refused(change: Callable[[Document], object], place: ImageFolder) -> None:
    place.write_index([put_image(place, "cpu-plain", change_manifest=change)])
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.images()


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["config"].update(Labels=["x"]),
        lambda document: document["config"].update(Labels="x"),
        lambda document: document["config"].update(Labels={"x": 1}),
        lambda document: document.update(config=[]),
        lambda document: document["rootfs"].update(diff_ids=5),
        lambda document: document["rootfs"].update(diff_ids=[]),
        lambda document: document.pop("rootfs"),
    ],
)
def test_a_configuration_that_no_save_writes_is_refused(
    change: Callable[[Document], object], place: ImageFolder
) -> None:
    place.write_index([put_image(place, "cpu-plain", change_configuration=change)])
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.images()


def test_a_layer_of_the_same_size_that_was_changed_is_refused(place: ImageFolder) -> None:
    (image, _) = place.images()
    (layer,) = image.layers
    file = place.file(layer["digest"])
    place.check(layer)
    content = file.read_bytes()
    for changed in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1], content + b"x"):
        file.write_bytes(changed)
        with pytest.raises(UserError, match=f"{file}: was changed or is damaged"):
            place.check(layer)
        assert not place.holds(layer)


def test_a_configuration_that_is_too_large_is_refused_as_such(place: ImageFolder) -> None:
    def change(document: Document) -> None:
        document["config"].update(Env=["x=" + "x" * 300_000])

    place.write_index([put_image(place, "cpu-plain", change_configuration=change)])
    with pytest.raises(UserError, match=r"variables and labels of an image take \d+ bytes, more than 262144; make"):
        place.images()


def test_annotations_of_the_index_that_are_none_are_refused(place: ImageFolder) -> None:
    index = json.loads((place.folder / "index.json").read_bytes())
    index["manifests"][0]["annotations"] = [1]
    (place.folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"index\.json: was changed or is damaged"):
        place.images()


def test_an_image_with_targets_alone_is_of_no_cell(place: ImageFolder) -> None:
    image = put_image(
        place,
        "x",
        change_configuration=lambda document: document["config"].update(Labels={f"{PREFIX}.targets": "gfx1100"}),
    )
    assert image.own_name == ""


def test_a_blob_with_terabytes_of_holes_is_not_read_to_its_end(place: ImageFolder) -> None:
    blob, read = place.put(bytes(5 << 20), LAYER), list[str]()
    os.truncate(place.file(blob["digest"]), 100 << 20)
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.check(blob, read.append)
    assert len(read) * PIECE_BYTES < 10 << 20


def test_an_index_larger_than_any_is_not_read(place: ImageFolder) -> None:
    (place.folder / "index.json").write_bytes(b" " * (LARGEST_TEXT + 1))
    with pytest.raises(UserError, match="not to the end"):
        place.images()


def test_no_more_is_read_of_many_images_than_of_those_that_are_saved(
    place: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LARGEST_IN_ALL", 1000)
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.images()
