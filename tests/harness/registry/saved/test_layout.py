"""A folder of images that somebody made: nothing in it is believed."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.registry.oci import IMAGE_INDEX, IMAGE_MANIFEST, Manifest, digest_of
from harness.registry.saved.layout import LAYOUT, NAME, ImageFolder

DIFF = digest_of(b"unpacked")


def quiet(_line: str) -> None:
    """Say nothing."""


class Made:
    """A folder with one image; its parts may be replaced before it is written."""

    def __init__(self, folder: Path) -> None:
        self.place = ImageFolder(folder)
        self.place.make()
        self.layer: dict[str, Any] = self.place.put(gzip.compress(b"unpacked", mtime=0), "layer")
        self.labels: Any = {"cell": "cpu-plain"}
        self.digests: Any = [DIFF]
        self.annotations: Any = {NAME: "cpu-plain"}

    def write(self) -> None:
        config = {"config": {"Labels": self.labels}, "rootfs": {"diff_ids": self.digests}}
        named = self.place.put(json.dumps(config).encode(), "config")
        document = {"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": named, "layers": [self.layer]}
        manifest = Manifest(json.dumps(document).encode(), IMAGE_MANIFEST)
        self.place.put(manifest.content, IMAGE_MANIFEST)
        entry = {**manifest.descriptor, "annotations": self.annotations}
        index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [entry]}
        (self.place.folder / "oci-layout").write_bytes(LAYOUT)
        (self.place.folder / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True))


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "images")


def test_one_that_is_sound_is_read(made: Made) -> None:
    made.write()
    (image,) = made.place.images()
    assert (image.name, image.unpacked, image.labels) == ("cpu-plain", (DIFF,), {"cell": "cpu-plain"})
    assert made.place.sound_images(quiet) == ([image], True)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("labels", ["cell"]),
        ("labels", "cell"),
        ("labels", {"cell": 1}),
        ("labels", None),
        ("digests", 5),
        ("digests", []),
        ("annotations", [1]),
        ("layer", {"size": 1}),
        ("layer", {"digest": DIFF}),
        ("layer", {"digest": DIFF, "size": True}),
        ("layer", {"digest": "../../../etc/passwd", "size": 1}),
    ],
)
def test_any_other_shape_is_one_line(part: str, value: object, made: Made) -> None:
    setattr(made, part, value)
    made.write()
    with pytest.raises(UserError, match="was changed or is damaged"):
        made.place.images()
    lines: list[str] = []
    assert made.place.sound_images(lines.append)[1] is False
    assert len(lines) == 1


def test_a_layer_is_reused_only_if_it_is_what_it_is_called(made: Made) -> None:
    made.write()
    assert made.place.unpacks_to(made.layer, DIFF, quiet)
    assert not made.place.unpacks_to(made.layer, digest_of(b"another"), quiet)
    for content in (b"no gzip", gzip.compress(b"unpacked")[:-3], gzip.compress(b"unpacked") + b"more"):
        other = made.place.put(content, "layer")
        assert not made.place.unpacks_to(other, DIFF, quiet)
    file = made.place.file(str(made.layer["digest"]))
    file.write_bytes(gzip.compress(b"unpacked", mtime=1))
    assert not made.place.unpacks_to(made.layer, DIFF, quiet)
