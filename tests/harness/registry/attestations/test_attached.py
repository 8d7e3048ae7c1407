from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from harness.base.errors import UserError
from harness.registry.attestations import attached
from harness.registry.attestations.attached import attach_signed, signed_beside
from harness.registry.attestations.bundles import Statement
from harness.registry.attestations.keys import SigningKey
from harness.registry.oci import EMPTY_TYPE, Repository
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
