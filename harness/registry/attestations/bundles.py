"""A signed statement about an image, as a Sigstore bundle that `cosign --key` verifies without any service.

The format is an in-toto statement v1 in a DSSE envelope in a bundle v0.3.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.base.files.json_bounds import load_json
from harness.registry.attestations.keys import PublicKey, SigningKey

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True)
class Statement:
    """A statement about an image: `digest` is that of the image's manifest, `kind` the type of the predicate."""

    name: str
    digest: str
    kind: str
    predicate: Mapping[str, Any]

    @property
    def content(self) -> bytes:
        """Return the bytes that are signed, which are the same for the same statement."""
        subject = {"name": self.name, "digest": {"sha256": self.digest.removeprefix("sha256:")}}
        document = {
            "_type": STATEMENT,
            "subject": [subject],
            "predicateType": self.kind,
            "predicate": dict(self.predicate),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sign(statement: Statement, key: SigningKey) -> bytes:
    """Return a bundle with a statement, signed by a key."""
    content = statement.content
    envelope = {
        "payload": b64encode(content).decode(),
        "payloadType": PAYLOAD,
        "signatures": [{"sig": b64encode(key.sign(_authenticated(content))).decode()}],
    }
    bundle = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": key.public.hint}},
        "dsseEnvelope": envelope,
    }
    return json.dumps(bundle, sort_keys=True).encode()


def open_bundle(content: bytes, key: PublicKey) -> Statement | None:
    """Return the statement in a bundle that this key signed; None for any other bundle, also for an invalid one."""
    try:
        envelope = load_json(content)["dsseEnvelope"]
        payload = b64decode(envelope["payload"], validate=True)
        # The format has one: to verify each of many over a large payload would take hours.
        (signature,) = envelope["signatures"]
        signed = key.signed(_authenticated(payload), b64decode(signature["sig"], validate=True))
        if envelope["payloadType"] != PAYLOAD or not signed:
            return None
        told = load_json(payload)
        (subject,) = told["subject"]
        digest = f"sha256:{subject['digest']['sha256']}"
        if told["_type"] != STATEMENT or not isinstance(told["predicate"], dict):
            return None
        return Statement(str(subject["name"]), digest, str(told["predicateType"]), told["predicate"])
    except (LookupError, TypeError, ValueError, Error):
        return None


def _authenticated(payload: bytes) -> bytes:
    """Return the bytes that DSSE signs: the payload with its type, so that no other type can be claimed for it."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
