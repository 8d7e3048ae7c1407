import tracemalloc
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from harness.base.errors import UserError
from harness.environments.docker.images import Image
from harness.registry.attestations import attached
from harness.registry.attestations.attached import (
    MOST_STATEMENT_BYTES,
    attach_signed,
    keep_signed,
    kept_manifests,
    opened_bundle,
    signed_beside,
    signed_kept,
)
from harness.registry.attestations.bundles import BUNDLE, Statement, sign
from harness.registry.attestations.keys import SigningKey
from harness.registry.oci import EMPTY_TYPE, IMAGE_INDEX, Manifest, Repository
from tests.harness.fake_registry import FakeRegistry


def test_larger_statements_than_anybody_makes_are_not_kept(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "KEPT", tmp_path)
    repository = Repository(f"{registry.host}/me/vpoc")
    image = repository.artifact(EMPTY_TYPE, b"an image", {}, None)
    repository.put_manifest("latest", image)
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    attach_signed(repository, Statement("vpoc", image.digest, "of anybody", {"text": "x" * 1000}), key)
    (found,) = signed_beside(repository, image.digest, {})
    monkeypatch.setattr(attached, "MOST_STATEMENT_BYTES", len(found.bundle))
    with pytest.raises(UserError, match=f"more than {len(found.bundle)} bytes"):
        signed_beside(repository, image.digest, {})


def test_the_statements_that_are_kept_take_little_memory() -> None:
    """Anybody can sign statements of empty lists, each of which takes twenty times its two bytes."""
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    bundle = sign(Statement("vpoc", f"sha256:{'c' * 64}", "of anybody", {"lists": [[]] * 32_000}), key)
    tracemalloc.start()
    kept = [opened_bundle(bundle, f"sha256:{'c' * 64}", key.public.line, {}) for _ in range(3)]
    taken = tracemalloc.get_traced_memory()[0] / len(kept)
    tracemalloc.stop()
    assert None not in kept
    assert taken * MOST_STATEMENT_BYTES / len(bundle) < 100_000_000


def test_a_statement_about_an_index_is_of_no_image_of_another_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "KEPT", tmp_path)
    # An index has no configuration.
    mine, other = (Manifest(b'{"manifests": [%d]}' % number, IMAGE_INDEX) for number in (1, 2))
    for index in (mine, other):
        keep_signed(index, b"a bundle", "a key")
    image = Image(f"sha256:{'c' * 64}", {}, (), 0, (), (f"ghcr.io/me/vpoc@{mine.digest}",))
    assert kept_manifests(image).keys() == {mine.digest}


def test_a_statement_about_one_image_says_nothing_about_another(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may push can put a statement that was signed about a good image beside a bad one."""
    monkeypatch.setattr(attached, "KEPT", tmp_path)
    repository = Repository(f"{registry.host}/me/vpoc")
    good, bad = (repository.artifact(EMPTY_TYPE, content, {}, None) for content in (b"good", b"bad"))
    for image in (good, bad):
        repository.put_manifest(image.digest, image)
    key = SigningKey(ec.generate_private_key(ec.SECP256R1()))
    attach_signed(repository, Statement(repository.name, good.digest, "of anybody", {}), key)
    (signed,) = signed_beside(repository, good.digest, {"me": key.public})
    repository.attach(repository.artifact(BUNDLE, signed.bundle, {}, bad), bad)
    assert signed_beside(repository, bad.digest, {"me": key.public}) == []
    keep_signed(bad, signed.bundle, key.public.line)
    assert (signed_kept(bad.digest, {}), len(signed_kept(good.digest, {}))) == ([], 1)
