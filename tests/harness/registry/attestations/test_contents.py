"""Tests that a bill of materials lists what is installed, is the same each time, and is compared with the lock."""

import tarfile
import tracemalloc
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.environments.docker import own_images
from harness.environments.docker.images import Image
from harness.environments.python.wheelhouse import locked_versions
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.registry.attestations import attached, attest
from harness.registry.attestations.attest import CONTENTS, attest_image, statements_of_image
from harness.registry.attestations.contents import (
    PACKAGES,
    Contents,
    bill_of_materials,
    contents_of_bill,
    contents_of_image,
    not_as_locked,
)
from harness.registry.attestations.keys import keys_folder
from harness.registry.attestations.provenance import PROVENANCE
from harness.registry.oci import EMPTY, Repository, digest_of
from tests.harness.fake_registry import FakeRegistry

FOUND = Contents({"torch": "2.13.0+cpu", "numpy": "2.3.1", "vpoc": "0.1.0"}, {"libc6": "2.36-9+deb12u10"})
HASH = f" \\\n    --hash=sha256:{'0' * 64}\n"


STATUS = "Package: libc6\nStatus: install ok installed\nVersion: 2\n\n"
TORCH = "opt/venv/lib/python3.11/site-packages/torch-2.dist-info/METADATA"


def read(*files: tuple[str, bytes]) -> Contents:
    """Return what is found in an image that holds these files."""
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    api = SimpleNamespace(
        create_container=lambda *_, **__: {"Id": "1"},
        remove_container=lambda *_, **__: None,
        export=lambda *_, **__: iter([made.getvalue()]),
    )
    engine = Engine("nowhere", SimpleNamespace(api=api))
    engine.__dict__["client_without_timeout"] = SimpleNamespace(api=api)
    return contents_of_image(engine, Image("sha256:1", {}, (), 1))


def test_the_packages_of_an_image_are_read_and_what_names_none_is_passed_over() -> None:
    half = "Status: install ok installed\nVersion: 1\n\n\n\nPackage: half\nStatus: install ok installed\n\n"
    found = read((TORCH, b"Name: Torch\nVersion: 2\n\ntext"), (PACKAGES, (half + STATUS).encode()))
    assert found == Contents({"torch": "2"}, {"libc6": "2"})


@pytest.mark.parametrize("name", [PACKAGES, TORCH])
def test_a_list_of_packages_that_is_too_large_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.registry.attestations.contents.LARGEST_READ", len(STATUS))
    read((name, STATUS.encode()))
    with pytest.raises(UserError, match=f"/{name} has more than {len(STATUS)} bytes"):
        read((name, STATUS.encode() + b" "))


def test_metadata_of_millions_of_fields_takes_no_memory() -> None:
    fields = b"a:\n" * 400_000
    tracemalloc.start()
    try:
        found = read((TORCH, fields + b"name:\tTorch \r\nVersion: 2\r\nName: other\n" + fields))
        assert found.python == {"torch": "2"}
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_an_image_of_too_many_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.registry.attestations.contents.MOST_PACKAGES", 2)
    files = [(TORCH.replace("torch-2", f"{n}-1"), f"Name: {n}\nVersion: 1\n".encode()) for n in range(4)]
    read(*files[:2])
    with pytest.raises(UserError, match="more than 2 packages"):
        read(*files)
    of_debian = "".join(STATUS.replace("libc6", f"lib{n}") for n in range(3))
    with pytest.raises(UserError, match="more than 2 packages"):
        read((PACKAGES, of_debian.encode()))


@pytest.mark.parametrize("name", ["", " ", "/"])
def test_a_package_with_an_impossible_name_is_refused(name: str) -> None:
    found = read((PACKAGES, STATUS.replace("libc6", name).encode()))
    with pytest.raises(UserError, match=r"^ghcr\.io/me/vpoc: has a package with a name that no package can have"):
        bill_of_materials(found, "ghcr.io/me/vpoc", f"sha256:{'a' * 64}", 1700000000, as_locked=True)


def test_an_image_with_two_versions_of_a_package_is_refused() -> None:
    files = [(TORCH, b"Name: Torch\nVersion: 2\n"), (TORCH.replace("3.11", "3.99"), b"Name: torch\nVersion: 2\n")]
    assert read(*files).python == {"torch": "2"}
    with pytest.raises(UserError, match="sha256:1: has torch 2 and 3; do not trust it"):
        read(*files, (TORCH.replace("torch-2", "torch-3"), b"Name: torch\nVersion: 3\n"))


def test_a_bill_is_read_back_and_is_the_same_each_time() -> None:
    bill = bill_of_materials(FOUND, "ghcr.io/me/vpoc", f"sha256:{'a' * 64}", 1700000000, as_locked=True)
    assert contents_of_bill(bill) == FOUND
    assert bill == bill_of_materials(FOUND, "ghcr.io/me/vpoc", f"sha256:{'a' * 64}", 1700000000, as_locked=True)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_what_differs_from_the_lock_is_named(matrix: Matrix, tmp_path: Path) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text(f"torch==2.13.0+cpu{HASH}numpy==2.3.1{HASH}", encoding="utf-8")
    locked = locked_versions(lock)
    stack = matrix.stacks["cpu"]
    assert not_as_locked(FOUND, locked, stack) == []
    other = Contents({"torch": "2.12.0+cpu", "vpoc": "0.1.0", "extra": "1"}, {})
    differing = [
        "extra: the lock names none, installed is 1",
        "numpy: the lock names 2.3.1, installed is none",
        "torch: the lock names 2.13.0+cpu, installed is 2.12.0+cpu",
    ]
    assert not_as_locked(other, locked, stack) == differing
    # AMD's base image has an environment of its own, and what is locked is installed into that.
    of_base = matrix.stacks["rocm7.2.4-torch2.10.0-amd"]
    assert not_as_locked(other, locked, of_base) == differing[1:]


@pytest.mark.parametrize("here", [True, False])
def test_a_bill_says_whether_it_was_compared_with_the_lock(
    here: bool, matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text(f"torch==2.13.0+cpu{HASH}numpy==2.3.1{HASH}", encoding="utf-8")
    monkeypatch.setattr(attest, "lock_file", lambda _: lock)
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    image = Image("sha256:1", {"vpoc.matrix.lock": file_hash(lock) if here else "0" * 64}, (), 1)
    own_images.remember(image)
    said: list[str] = []

    def signed(contents: Contents) -> dict[str, Any]:
        digest = f"sha256:{'a' * 64}"
        statements = statements_of_image(matrix.cells["cpu-plain"], image, contents, "vpoc", digest, said.append)
        return next(dict(one.predicate) for one in statements if one.kind == CONTENTS)

    value = "as locked" if here else "not compared: the lock was not here"
    assert signed(FOUND)["metadata"]["properties"] == [{"name": "vpoc:lock", "value": value}]
    assert bool(said) == (not here)
    if here:
        with pytest.raises(UserError, match="is not what its lock names: numpy"):
            signed(Contents({"torch": "2.13.0+cpu"}, {}))


def test_it_is_not_signed_what_an_image_of_others_was_made_from(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own-images.txt")
    own_images.remember(Image("sha256:1", {}, (), 1))
    own_images.remember(Image("sha256:2", {}, (), 1), on_others=True)
    cell, said = matrix.cells["cpu-plain"], list[str]()
    signed = {
        name: {one.kind for one in statements_of_image(cell, Image(name, {}, (), 1), FOUND, "vpoc", "", said.append)}
        for name in ("sha256:1", "sha256:2", "sha256:3")
    }
    assert signed == {"sha256:1": {CONTENTS, PROVENANCE}, "sha256:2": {CONTENTS}, "sha256:3": {CONTENTS}}
    assert sum("was not built here" in line for line in said) == 2


def test_what_this_key_signed_of_an_image_is_not_read_again(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(attached, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(attest, "lock_file", lambda _: tmp_path / "none")
    read: list[str] = []

    def contents(_: Engine, image: Image) -> Contents:
        read.append(image.id)
        return FOUND

    monkeypatch.setattr(attest, "contents_of_image", contents)
    engine = Engine("nowhere", SimpleNamespace())
    with FakeRegistry().serving() as host:
        for name in ("one", "another"):
            repository = Repository(f"{host}/{name}/vpoc")
            pushed = repository.artifact("image", b"layer", {}, None)
            repository.put_manifest("cpu-plain", pushed)
            # The artifact has the empty configuration, so an engine would name the image by the digest of that.
            words = (repository.name, pushed.digest, lambda _: None)
            attest_image(engine, matrix.cells["cpu-plain"], Image(digest_of(EMPTY), {}, (), 1), *words)
        assert read == [digest_of(EMPTY)]
        attest_image(engine, matrix.cells["cpu-plain"], Image("sha256:other", {}, (), 1), *words)
        assert read.pop() == "sha256:other"
        (keys_folder() / "own.pem").unlink()
        attest_image(engine, matrix.cells["cpu-plain"], Image(digest_of(EMPTY), {}, (), 1), *words)
        assert len(read) == 2
