"""What nodes take images from is looked at before any job: archives and registries, without an engine."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.environments.images import Image, tag_name
from harness.matrix.cells import Matrix
from harness.registry.image_sources import _in_source
from harness.registry.oci import DOCKER_MANIFEST, Manifest, Repository
from tests.harness.fake_registry import FakeRegistry

CELL = "cpu-plain"
IDS = {"classic": f"sha256:{'a' * 64}", "containerd": f"sha256:{'b' * 64}"}
LISTS: dict[str, dict[str, Any]] = {
    # As Docker 20.10 and 28 write them.
    "old": {"manifest.json": [{"Config": f"{'a' * 64}.json", "RepoTags": ["vpoc:cpu-plain"], "Layers": []}]},
    "new": {
        "index.json": {"manifests": [{"digest": IDS["containerd"], "mediaType": "application/vnd.oci.image.index"}]},
        "manifest.json": [{"Config": f"blobs/sha256/{'a' * 64}", "RepoTags": None, "Layers": []}],
    },
}


def image(id_: str) -> Image:
    return Image(id_, {"vpoc.matrix.cell": CELL}, (), 1)


def write_archive(file: Path, members: dict[str, Any]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, value in members.items():
            content = json.dumps(value).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(("layout", "store"), [("old", "classic"), ("new", "classic"), ("new", "containerd")])
def test_an_image_is_found_in_an_archive_whatever_its_name(
    layout: str, store: str, tmp_path: Path, matrix: Matrix
) -> None:
    (tmp_path / "damaged.tar").write_bytes(b"x" * 2000)
    write_archive(tmp_path / "another.tar", {"manifest.json": [{"Config": f"{'c' * 64}.json"}], "odd.json": 3})
    write_archive(tmp_path / "some.tar", LISTS[layout])
    found = _in_source(str(tmp_path), matrix.cells[CELL], image(IDS[store]))
    assert (found.archive, found.reference) == (str(tmp_path / "some.tar"), None)


def test_an_image_that_no_archive_holds_is_refused_with_the_command_that_saves_it(
    tmp_path: Path, matrix: Matrix
) -> None:
    write_archive(tmp_path / "some.tar", LISTS["old"])
    with pytest.raises(UserError, match=rf"`docker save --output {tmp_path}/{CELL}.tar vpoc:{CELL}` puts it there$"):
        _in_source(str(tmp_path), matrix.cells[CELL], image(f"sha256:{'d' * 64}"))


def test_an_image_in_a_registry_is_named_by_its_digest(registry: FakeRegistry, matrix: Matrix) -> None:
    cell = matrix.cells[CELL]
    content = json.dumps({"config": {"digest": IDS["classic"]}, "layers": []}).encode()
    manifest = Manifest(content, DOCKER_MANIFEST)
    place = f"{registry.host}/me"
    remedy = rf"`matrix push {CELL} --registry {place}` puts it there$"
    with pytest.raises(UserError, match=f"it is not there; {remedy}"):
        _in_source(place, cell, image(IDS["classic"]))
    Repository(f"{place}/vpoc").put_manifest(tag_name(cell), manifest)
    found = _in_source(place, cell, image(IDS["classic"]))
    assert (found.archive, found.reference) == (None, f"{place}/vpoc@{manifest.digest}")
    with pytest.raises(UserError, match=f"it is another image than the one here; {remedy}"):
        _in_source(place, cell, image(IDS["containerd"]))
