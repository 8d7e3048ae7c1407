"""Tests that the folder or registry from which nodes take images is checked before any job, without an engine."""

import io
import json
import socket
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import NoAnswerError, UserError
from harness.environments.docker import node_images
from harness.environments.docker.images import Image, tag_name
from harness.environments.docker.node_images import NodeImage, bring_image
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry.image_sources import _in_source
from harness.registry.oci import DOCKER_MANIFEST, IMAGE_MANIFEST, Manifest, Repository, digest_of
from harness.registry.saved.layout import ImageFolder
from harness.registry.saved.load import saved_archive
from harness.registry.saved.saved_image import SavedImage
from tests.harness.fake_registry import FakeRegistry

CELL = "cpu-plain"
IDS = {"classic": f"sha256:{'a' * 64}", "containerd": f"sha256:{'b' * 64}"}


def image(id_: str) -> Image:
    return Image(id_, {"vpoc.matrix.cell": CELL}, (), 1)


def save(folder: Path) -> SavedImage:
    """Write what `matrix save` leaves of an image with one layer; return the saved image."""
    place = ImageFolder(folder)
    place.make()
    config = json.dumps(
        {"config": {"Labels": {"vpoc.matrix.cell": CELL}}, "rootfs": {"diff_ids": [digest_of(b"a layer")]}}
    ).encode()
    layer = place.put(b"a layer", "application/vnd.oci.image.layer.v1.tar")
    document = {"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": place.put(config, "x"), "layers": [layer]}
    manifest = Manifest(json.dumps(document).encode(), IMAGE_MANIFEST)
    place.put(manifest.content, manifest.media_type)
    saved = SavedImage(CELL, manifest, config)
    place.write_index([saved])
    return saved


def test_an_image_is_found_and_read_in_a_folder_of_matrix_save_by_either_id(tmp_path: Path, matrix: Matrix) -> None:
    saved = save(tmp_path)
    for one in saved.ids:
        found = _in_source(str(tmp_path), matrix.cells[CELL], image(one))
        assert (found.archive, frozenset(found.ids), found.id) == (str(tmp_path), saved.ids, one)
    with tarfile.open(fileobj=io.BytesIO(b"".join(saved_archive(tmp_path, saved.ids)))) as archive:
        names = set(archive.getnames())
        listed = json.loads((archive.extractfile("manifest.json") or pytest.fail("none")).read())
    assert listed[0]["RepoTags"] == ["vpoc:cpu-plain"]
    assert {"oci-layout", "index.json", *listed[0]["Layers"]} <= names
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            UserError, match=rf"that is here is not there; `matrix save {CELL} {folder}` puts it there$"
        ):
            _in_source(str(folder), matrix.cells[CELL], image(IDS["classic"]))
    # No part of a changed image is sent to a node.
    (tmp_path / "blobs/sha256" / str(saved.layers[0]["digest"])[7:]).write_bytes(b"A layer")
    with pytest.raises(UserError, match="was changed or is damaged"):
        next(saved_archive(tmp_path, saved.ids))


def test_a_node_loads_an_image_from_a_folder_whatever_its_engine_calls_it(tmp_path: Path) -> None:
    saved = save(tmp_path)
    given: list[bytes] = []
    there: list[str] = []

    def load_image(pieces: Iterable[bytes], **_: object) -> list[dict[str, str]]:
        given.extend(pieces)
        there.append(saved.manifest.digest)
        return [{"stream": "loaded"}]

    def inspect_image(name: str) -> dict[str, Any]:
        if name not in there:
            raise ImageNotFound(name)
        return {"Id": name, "Config": {}, "RootFS": {}, "Size": 1}

    engine = Engine("nowhere", SimpleNamespace(api=SimpleNamespace(inspect_image=inspect_image)))
    config, manifest = digest_of(saved.config), saved.manifest.digest
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o777)
    wanted = NodeImage(id=config, ids=(config, manifest), labels={}, archive=str(tmp_path), remedy="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_images, "_BoundedClient", lambda **_: SimpleNamespace(load_image=load_image))
        assert bring_image(engine, wanted, saved_archive, print, tmp_path).id == manifest
    assert given


@pytest.mark.parametrize(("digest", "known"), [("e" * 64, True), ("a" * 64, False), (None, False)])
def test_of_a_registry_that_does_not_answer_only_what_was_not_pushed_is_asked(
    digest: str | None, known: bool, matrix: Matrix
) -> None:
    """An engine with containerd's store names its own id as the digest of an image that may never have been pushed."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}/me"
        there = f"{place}/vpoc@sha256:{digest}"
        names = ("elsewhere/vpoc@sha256:" + "f" * 64, *((there,) if digest else ()))
        here = replace(image(IDS["classic"]), digests=names)
        if known:
            assert _in_source(place, matrix.cells[CELL], here).reference == there
            return
        with pytest.raises(NoAnswerError, match="does not answer"):
            _in_source(place, matrix.cells[CELL], here)


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
    another = f"it is another image than the one here; {remedy}"
    with pytest.raises(UserError, match=another):
        _in_source(place, cell, image(IDS["containerd"]))
    odd = Manifest(json.dumps({"config": {"digest": [IDS["classic"]]}}).encode(), DOCKER_MANIFEST)
    Repository(f"{place}/vpoc").put_manifest(tag_name(cell), odd)
    with pytest.raises(UserError, match=another):
        _in_source(place, cell, image(IDS["classic"]))
