import io
import json
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.environments.docker.images import PREFIX
from harness.registry.oci import IMAGE_MANIFEST, Manifest, digest_of
from harness.registry.saved.engine_archive import archive_of
from harness.registry.saved.load import _check_name, _check_statements
from harness.registry.saved.saved_image import SavedImage


@pytest.mark.parametrize("name", ["known-good", "known-good-cpu"])
def test_no_folder_moves_a_known_good_tag(name: str) -> None:
    config = json.dumps({"config": {"Labels": {f"{PREFIX}.cell": name}}}).encode()
    with pytest.raises(UserError, match=r"as only `matrix promote` names one"):
        _check_name(Path("images"), SavedImage(name, Manifest(b"{}", IMAGE_MANIFEST), config))


def test_a_refused_name_of_an_image_stays_within_one_line() -> None:
    config = json.dumps({"config": {"Labels": {f"{PREFIX}.cell": "b\nmatrix: c"}}}).encode()
    with pytest.raises(UserError) as told:
        _check_name(Path("images"), SavedImage("a\nmatrix: all is well", Manifest(b"{}", IMAGE_MANIFEST), config))
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(("count", "size", "refused"), [(400, 10, False), (401, 10, True), (2, 9 << 20, True)])
def test_more_or_larger_statements_than_anybody_makes_are_refused(count: int, size: int, refused: bool) -> None:
    artifact = Manifest(json.dumps({"layers": [{"size": size}], "config": {"size": 2}}).encode(), IMAGE_MANIFEST)
    image = SavedImage("cpu-plain", Manifest(b"{}", IMAGE_MANIFEST), b"{}", (artifact,) * count)
    with pytest.raises(UserError, match="statements of") if refused else nullcontext():
        _check_statements(Path("images"), image)


@pytest.mark.parametrize("more", [b"", b"x", b"\0" * 508 + tarfile.TarInfo("manifest.json").tobuf() + bytes(1024)])
def test_an_engine_gets_no_byte_of_a_blob_beyond_those_that_were_checked(more: bytes) -> None:
    config = b"{  }"
    described = {"digest": digest_of(config), "size": len(config)}
    image = SavedImage("a", Manifest(json.dumps({"config": described}).encode(), IMAGE_MANIFEST), config)
    sent = io.BytesIO(b"".join(archive_of({"vpoc:a": image}, lambda _: io.BytesIO(config + more))))
    with tarfile.open(fileobj=sent) as archive:
        path = f"blobs/{digest_of(config).replace(':', '/')}"
        told = archive.extractfile(path)
        assert told is not None
        assert told.read() == config
        assert archive.getnames().count("manifest.json") == 1
        assert archive.getnames()[-1] == "manifest.json"


@pytest.mark.parametrize("other", [b"{}  ", b"{", b""])
def test_a_blob_that_is_changed_after_the_check_ends_what_an_engine_gets(other: bytes) -> None:
    config = b"{  }"
    described = {"digest": digest_of(config), "size": len(config)}
    image = SavedImage("a", Manifest(json.dumps({"config": described}).encode(), IMAGE_MANIFEST), config)
    sent: list[bytes] = []
    with pytest.raises(UserError, match="was changed while it was read"):
        sent.extend(archive_of({"vpoc:a": image}, lambda _: io.BytesIO(other)))
    assert not any(b"manifest.json" in piece for piece in sent)
