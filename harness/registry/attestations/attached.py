"""Signed statements stored beside an image in a registry, where cosign looks for them too, and copies of them here."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.files.storage import read_regular, write_durably
from harness.base.paths import CACHE
from harness.environments.docker.images import Image
from harness.registry.attestations.bundles import BUNDLE, Statement, open_bundle, sign
from harness.registry.attestations.keys import PublicKey, SigningKey, read_public_key
from harness.registry.oci import IMAGE_MANIFEST, Manifest, Repository, descriptor_in, digest_of, object_in

# The annotation with the key, so that an unknown key can be shown; what it signed is verified in any case.
SIGNER = "vpoc.matrix.signer"
KEPT = CACHE / "attestations"
# Beside the statements lies the manifest that they are about, which identifies the image whatever an engine calls it.
MANIFEST = "manifest"
# Most bytes of all statements about one image, which are read and kept together: a real one has some 100 kB. Lists
# that are empty take twenty times as much memory.
MOST_STATEMENT_BYTES = 4 << 20


@dataclass(frozen=True)
class Signed:
    """A statement with a valid signature, in its bundle; `name` is the key's name here; None if it is unknown."""

    statement: Statement
    key: PublicKey
    name: str | None
    bundle: bytes

    @property
    def signer(self) -> str:
        """Return the signer, in words."""
        return self.name or f"a key not known here ({self.key.fingerprint})"


def attach_signed(repository: Repository, statement: Statement, key: SigningKey) -> None:
    """Sign a statement, store it beside its image, and keep a copy here; repeating that changes nothing.

    Raises:
        UserError: when the registry refuses the statement, or lacks the image.
    """
    subject = repository.manifest(statement.digest)
    if subject is None:
        raise UserError(f"{repository.name}@{statement.digest}: is not there; push it again")
    bundle = sign(statement, key)
    annotations = annotations_of(statement, key.public.line)
    repository.attach(repository.artifact(BUNDLE, bundle, annotations, subject), subject)
    keep_signed(subject, bundle, key.public.line)


def signed_beside(repository: Repository, digest: str, known: Mapping[str, PublicKey]) -> list[Signed]:
    """Return the validly signed statements about an image that are beside it in a registry, and keep copies of them.

    Raises:
        UserError: when the registry fails, or the statements are larger than any real ones.
    """
    found = []
    size = 0
    subject: Manifest | None = None
    for artifact in repository.referrers(digest, BUNDLE):
        line = object_in(artifact.parsed, "annotations").get(SIGNER)
        bundle = repository.content(artifact)
        size += len(artifact.content) + len(bundle)
        if size > MOST_STATEMENT_BYTES:
            raise UserError(
                f"{repository.name}@{digest}: the statements beside it have more than {MOST_STATEMENT_BYTES} bytes; "
                "do not trust this registry"
            )
        if signed := opened_bundle(bundle, digest, line, known):
            found.append(signed)
            subject = subject or repository.manifest(digest)
            if subject:
                keep_signed(subject, bundle, signed.key.line)
    return found


def signed_kept(digest: str, known: Mapping[str, PublicKey]) -> list[Signed]:
    """Return the statements about an image that this checkout kept copies of at a push, pull, save or load."""
    found = []
    for file in sorted((KEPT / digest.removeprefix("sha256:")).glob("*.json")):
        key = file.with_suffix(".key")
        line = key.read_text(encoding="ascii") if key.is_file() else None
        if signed := opened_bundle(read_regular(file), digest, line, known):
            found.append(signed)
    return found


def kept_manifests(image: Image) -> dict[str, Manifest]:
    """Return the manifests, by digest, of an image for whose statements this checkout has copies.

    An image has several manifests if its layers are packed in different ways; all of them name the same configuration.
    An engine identifies an image by its manifest or by its configuration.
    """
    files = {f"sha256:{file.parent.name}": read_regular(file) for file in KEPT.glob(f"*/{MANIFEST}")}
    kept = {digest: Manifest(told, IMAGE_MANIFEST) for digest, told in files.items() if digest_of(told) == digest}
    names = {image.id, *(name.partition("@")[2] for name in image.digests)}
    # An index names no configuration: any other index may be of another image.
    configs = {image.id, *(_config(kept[name]) for name in names & kept.keys())} - {""}
    return {digest: told for digest, told in kept.items() if digest in names or _config(told) in configs}


def annotations_of(statement: Statement, line: str) -> dict[str, str]:
    """Return the annotations of an artifact, which say what statement is in it and whose key signed it."""
    return {
        "dev.sigstore.bundle.content": "dsse-envelope",
        "dev.sigstore.bundle.predicateType": statement.kind,
        SIGNER: line,
    }


def opened_bundle(bundle: bytes, digest: str, line: object, known: Mapping[str, PublicKey]) -> Signed | None:
    """Return a bundle's statement if it is about this manifest and validly signed by a known key or by `line`."""
    candidates: list[tuple[str | None, PublicKey]] = [(name, key) for name, key in known.items()]
    if isinstance(line, str):
        # Ignore an invalid line, because a known key may still have signed.
        with suppress(UserError):
            candidates.append((None, read_public_key(line)))
    for name, key in candidates:
        statement = open_bundle(bundle, key)
        if statement:
            return Signed(statement, key, name, bundle) if statement.digest == digest else None
    return None


def keep_signed(manifest: Manifest, bundle: bytes, line: str) -> None:
    """Keep a copy of a bundle about a manifest, with the key that signed the bundle.

    Raises:
        UserError: when the copy cannot be written.
    """
    folder = KEPT / manifest.digest.removeprefix("sha256:")
    if not (folder / MANIFEST).is_file():
        write_durably(folder / MANIFEST, manifest.content)
    file = folder / f"{hashlib.sha256(bundle).hexdigest()}.json"
    if not file.is_file():
        write_durably(file.with_suffix(".key"), line.encode())
        write_durably(file, bundle)


def _config(manifest: Manifest) -> str:
    return str(descriptor_in(manifest, "config").get("digest", ""))
