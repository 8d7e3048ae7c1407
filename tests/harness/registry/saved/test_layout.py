"""A folder of images without an engine: what is whole in it outlasts what was damaged, and what no save writes."""

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.environments.docker.images import PREFIX
from harness.registry.oci import EMPTY, EMPTY_TYPE, IMAGE_MANIFEST, Descriptor, Manifest, digest_of
from harness.registry.saved import layout
from harness.registry.saved.engine_archive import LAYER
from harness.registry.saved.layout import LARGEST_TEXT, ImageFolder
from harness.registry.saved.repair import repair
from harness.registry.saved.saved_image import SavedImage
from harness.registry.saved.unpacking import Unpacking

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
    """An image of a layer of its own, with a signed statement; its documents perhaps as no save writes them."""
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
    told = {"artifactType": "bundle", "subject": manifest.descriptor, "layers": [], "annotations": {"name": name}}
    artifact = Manifest(json.dumps({**told, "config": place.put(EMPTY, EMPTY_TYPE)}).encode(), IMAGE_MANIFEST)
    for one in (manifest, artifact):
        place.put(one.content, one.media_type)
    return SavedImage(name, manifest, config, (artifact,))


@pytest.fixture
def place(tmp_path: Path) -> ImageFolder:
    """A folder with two images."""
    place = ImageFolder(tmp_path / "images")
    place.make()
    place.write_index([put_image(place, name) for name in NAMES])
    return place


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
def test_images_are_known_without_the_index(name: str, damage: Callable[[Path], object], place: ImageFolder) -> None:
    before, told = place.images(), list[str]()
    damage(place.folder / name)
    with pytest.raises(UserError):
        place.images()
    repair(place, told.append)
    place.remove_unnamed()
    assert place.images() == before
    assert told == []


def test_a_damaged_image_is_named_and_the_other_stays(place: ImageFolder) -> None:
    lost, kept = place.images()
    for digest in (lost.manifest.digest, digest_of(lost.config)):
        told: list[str] = []
        content = place.file(digest).read_bytes()
        flip(place.file(digest))
        index = (place.folder / "index.json").read_bytes()
        repair(place, told.append)
        assert place.images() == [kept]
        (place.folder / "index.json").write_bytes(index)
        assert told == [f"{place.folder}: the image of cpu-no-sdma is damaged; `matrix save` writes it again"]
        place.file(digest).write_bytes(content)
    flip(place.file(kept.artifacts[0].digest))
    told = []
    repair(place, told.append)
    assert place.images() == [lost, SavedImage(kept.name, kept.manifest, kept.config)]
    assert told == [f"{place.folder}: 1 signed statements are damaged and left out"]
    place.remove_unnamed()
    assert [image.name for image in place.images()] == list(NAMES)


def test_without_the_index_an_image_is_what_was_written_last(place: ImageFolder) -> None:
    old = place.images()[0]
    new = put_image(place, old.name, change_configuration=lambda told: told.update(created="later"))
    os.utime(place.file(old.manifest.digest), (1, 1))
    (place.folder / "index.json").unlink()
    repair(place, lambda _: None)
    assert place.images()[0].config == new.config


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["layers"][0].pop("digest"),
        lambda told: told["layers"][0].update(digest="../../x"),
        lambda told: told["layers"][0].update(size="7"),
        lambda told: told.update(layers=[1]),
        lambda told: told.update(layers={}),
        lambda told: told["layers"].append(told["layers"][0]),
        lambda told: told.update(config=[]),
        lambda told: told.update(annotations=[1]),
    ],
)
def test_a_manifest_that_no_save_writes_is_refused(change: Callable[[Document], object], place: ImageFolder) -> None:
    place.write_index([put_image(place, "cpu-plain", change_manifest=change)])
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.images()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["config"].update(Labels=["x"]),
        lambda told: told["config"].update(Labels="x"),
        lambda told: told["config"].update(Labels={"x": 1}),
        lambda told: told.update(config=[]),
        lambda told: told["rootfs"].update(diff_ids=5),
        lambda told: told["rootfs"].update(diff_ids=[]),
        lambda told: told.pop("rootfs"),
    ],
)
def test_a_configuration_that_no_save_writes_is_refused(
    change: Callable[[Document], object], place: ImageFolder
) -> None:
    place.write_index([put_image(place, "cpu-plain", change_configuration=change)])
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.images()


def test_a_configuration_that_is_too_large_is_refused_as_such(place: ImageFolder) -> None:
    def change(told: Document) -> None:
        told["config"].update(Env=["x=" + "x" * 300_000])

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
        place, "x", change_configuration=lambda told: told["config"].update(Labels={f"{PREFIX}.targets": "gfx1100"})
    )
    assert image.own_name == ""


def described(content: bytes) -> Descriptor:
    return {"mediaType": LAYER, "digest": digest_of(content), "size": len(content)}


@pytest.mark.parametrize(
    ("packed", "same"),
    [
        (gzip.compress(PLAIN), True),
        (gzip.compress(bytes(5 << 20)), False),
        (gzip.compress(PLAIN[:-1] + b"x"), False),
        (gzip.compress(PLAIN)[:-4], False),
        (gzip.compress(PLAIN) + b"more", False),
        (b"not packed", False),
    ],
    ids=["itself", "longer", "other", "cut", "more", "not packed"],
)
def test_a_layer_is_compared_as_it_is_unpacked(packed: bytes, same: bool, place: ImageFolder) -> None:
    blob = place.put(packed, f"{LAYER}+gzip")
    assert place.holds_packed(blob, described(PLAIN), lambda _: None) == same


def test_what_unpacks_to_more_than_it_should_is_not_unpacked_to_its_end() -> None:
    unpacking = Unpacking(1 << 20)
    with pytest.raises(zlib.error, match="too long"):
        unpacking.take(gzip.compress(bytes(5 << 20)))


def test_a_large_layer_is_compared_and_a_blob_is_read_once(place: ImageFolder) -> None:
    large, told = bytes(5 << 20), list[str]()
    blob = place.put(gzip.compress(large), f"{LAYER}+gzip")
    assert place.holds_packed(blob, described(large), told.append)
    assert told
    place.file(blob["digest"]).unlink()
    assert place.holds_packed(blob, described(large), lambda _: None)


def test_a_blob_with_terabytes_of_holes_is_not_read_to_its_end(place: ImageFolder) -> None:
    blob, read = place.put(bytes(5 << 20), LAYER), list[bytes]()
    os.truncate(place.file(blob["digest"]), 100 << 20)
    with pytest.raises(UserError, match="was changed or is damaged"):
        place.check(blob, each=read.append)
    assert sum(map(len, read)) < 10 << 20


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
