"""Signed statements beside an image in a registry, where cosign also looks for them, and their copies here."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.paths import CACHE
from harness.base.storage import read_regular, write_durably
from harness.registry.attestations.bundles import BUNDLE, Statement, open_bundle, sign
from harness.registry.attestations.keys import PublicKey, SigningKey, read_public_key
from harness.registry.oci import Repository

# By it a key can be shown that nobody here knows yet; what it signed is verified all the same.
SIGNER = "vpoc.matrix.signer"
KEPT = CACHE / "attestations"


@dataclass(frozen=True)
class Signed:
    """A statement with a valid signature; `name` is that of the key here, None of one that is not known."""

    statement: Statement
    key: PublicKey
    name: str | None

    @property
    def signer(self) -> str:
        """Return who signed it, in words."""
        return self.name or f"a key not known here ({self.key.fingerprint})"


def attach_signed(repository: Repository, statement: Statement, key: SigningKey) -> None:
    """Sign a statement, store it beside its image, and keep a copy here; the same again changes nothing.

    Raises:
        UserError: when the registry refuses it, or the image is not there.
    """
    subject = repository.manifest(statement.digest)
    if subject is None:
        raise UserError(f"{repository.name}@{statement.digest}: is not there; push it again")
    bundle = sign(statement, key)
    annotations = {
        "dev.sigstore.bundle.content": "dsse-envelope",
        "dev.sigstore.bundle.predicateType": statement.kind,
        SIGNER: key.public.line,
    }
    repository.attach(repository.artifact(BUNDLE, bundle, annotations, subject), subject)
    _keep(statement.digest, bundle, key.public.line)


def signed_beside(repository: Repository, digest: str, known: Mapping[str, PublicKey]) -> list[Signed]:
    """Return the statements beside an image in a registry that are about it and validly signed; copies are kept.

    Raises:
        UserError: when the registry fails.
    """
    found = []
    for artifact in repository.referrers(digest, BUNDLE):
        annotations = artifact.parsed.get("annotations")
        line = annotations.get(SIGNER) if isinstance(annotations, dict) else None
        bundle = repository.content(artifact)
        if signed := _opened(bundle, digest, line, known):
            found.append(signed)
            _keep(digest, bundle, signed.key.line)
    return found


def signed_kept(digest: str, known: Mapping[str, PublicKey]) -> list[Signed]:
    """Return those of which this checkout has copies: they were beside the image when it was pushed or pulled."""
    found = []
    for file in sorted((KEPT / digest.removeprefix("sha256:")).glob("*.json")):
        key = file.with_suffix(".key")
        line = key.read_text(encoding="ascii") if key.is_file() else None
        if signed := _opened(read_regular(file), digest, line, known):
            found.append(signed)
    return found


def kept_files(digest: str) -> Iterable[Path]:
    """Return the files with the copies of an image's statements."""
    return sorted((KEPT / digest.removeprefix("sha256:")).glob("*.*"))


def _opened(bundle: bytes, digest: str, line: object, known: Mapping[str, PublicKey]) -> Signed | None:
    candidates: list[tuple[str | None, PublicKey]] = [(name, key) for name, key in known.items()]
    if isinstance(line, str):
        # Whatever stands there: one that is known may still have signed.
        with suppress(UserError):
            candidates.append((None, read_public_key(line)))
    for name, key in candidates:
        statement = open_bundle(bundle, key)
        if statement:
            return Signed(statement, key, name) if statement.digest == digest else None
    return None


def _keep(digest: str, bundle: bytes, line: str) -> None:
    file = KEPT / digest.removeprefix("sha256:") / f"{hashlib.sha256(bundle).hexdigest()}.json"
    if not file.is_file():
        write_durably(file.with_suffix(".key"), line.encode())
        write_durably(file, bundle)
