"""Tests that statements are signed, verified and bound to their image, and that keys are the user's alone."""

import json
import os
import stat
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from harness.base.errors import UserError
from harness.registry.attestations import keys
from harness.registry.attestations.bundles import Statement, open_bundle, sign
from harness.registry.attestations.keys import (
    distrust,
    ensure_own_key,
    keys_folder,
    known_keys,
    own_key,
    read_public_key,
    trust,
    trusted_keys,
)

SAID = Statement("ghcr.io/me/vpoc", f"sha256:{'a' * 64}", "urn:test", {"passes": 24})


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_key_is_made_once_and_is_the_users_alone() -> None:
    assert own_key() is None
    made = ensure_own_key()
    assert ensure_own_key().public == made.public
    assert stat.S_IMODE((keys_folder() / "own.pem").stat().st_mode) == 0o600
    assert [file.name for file in keys_folder().iterdir()] == ["own.pem"]


def test_what_was_signed_is_read_back_and_signing_again_gives_the_same_bytes() -> None:
    key = ensure_own_key()
    bundle = sign(SAID, key)
    assert open_bundle(bundle, key.public) == SAID
    assert sign(SAID, key) == bundle


def test_another_key_or_another_word_is_no_signature() -> None:
    key = ensure_own_key()
    bundle = json.loads(sign(SAID, key))
    (keys_folder() / "own.pem").unlink()
    assert open_bundle(json.dumps(bundle).encode(), ensure_own_key().public) is None
    payload = b64decode(bundle["dsseEnvelope"]["payload"]).replace(b"24", b"99")
    forged = {**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], "payload": b64encode(payload).decode()}}
    assert open_bundle(json.dumps(forged).encode(), key.public) is None
    retyped = {**bundle, "dsseEnvelope": {**bundle["dsseEnvelope"], "payloadType": "text/plain"}}
    assert open_bundle(json.dumps(retyped).encode(), key.public) is None


def test_a_bundle_has_one_signature_as_each_takes_as_long_as_the_payload_is_large() -> None:
    key = ensure_own_key()
    bundle = json.loads(sign(SAID, key))
    bundle["dsseEnvelope"]["signatures"] *= 2
    assert open_bundle(json.dumps(bundle).encode(), key.public) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"dsseEnvelope": 7}', b'{"dsseEnvelope": {"payload": "?"}}'])
def test_rubbish_is_no_statement(content: bytes) -> None:
    assert open_bundle(content, ensure_own_key().public) is None


def test_keys_of_others_are_trusted_by_name_until_they_are_forgotten(tmp_path: Path) -> None:
    other = ensure_own_key().public
    (keys_folder() / "own.pem").unlink()
    mine = ensure_own_key().public
    assert trust(read_public_key(other.line), "somebody") == "somebody"
    assert read_public_key(other.pem.decode()) == other
    assert known_keys({"listed": other.line}) == {"listed": other, "somebody": other, "you": mine}
    with pytest.raises(UserError, match="another key has the name somebody"):
        trust(mine, "somebody")
    distrust("somebody")
    assert trusted_keys() == {}
    with pytest.raises(UserError, match="no key named somebody"):
        distrust("somebody")


def test_a_matrix_file_cannot_name_a_key_as_the_users_own() -> None:
    others = keys.SigningKey(ec.generate_private_key(ec.SECP256R1())).public
    with pytest.raises(UserError, match="only your own key has that name"):
        known_keys({"you": others.line})
    assert known_keys({"them": others.line}) == {"them": others}


@pytest.mark.parametrize("name", ["you", "../own", "", "a b"])
def test_a_name_that_is_a_path_or_the_users_own_is_refused(name: str) -> None:
    key = ensure_own_key().public
    if name:
        with pytest.raises(UserError, match="is not a name for a key"):
            trust(key, name)
    else:
        assert keys.trust(key).isalnum()


@pytest.mark.parametrize("text", ["", "AAAA", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a public ECDSA key"):
        read_public_key(text)


@pytest.mark.parametrize("made_as", ["pipe", "bytes", "terabyte"])
def test_a_file_that_is_no_key_is_named(made_as: str) -> None:
    file = keys_folder() / "trusted" / "their.pub"
    file.parent.mkdir(parents=True)
    if made_as == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes(b"\xff")
        os.truncate(file, 1 << 40 if made_as == "terabyte" else 1)
    with pytest.raises(UserError, match=r"their\.pub: (cannot be read as a key: |this is not a public)"):
        trusted_keys()
