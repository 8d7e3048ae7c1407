"""Checks an image, without rebuilding it, against its lock and against what was signed about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.base.files.hashes import file_hash
from harness.environments.docker.images import PREFIX, Image
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import locked_versions
from harness.host.engine import Engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Matrix
from harness.registry.attestations.attached import Signed, kept_manifests, signed_beside, signed_kept
from harness.registry.attestations.attest import CONTENTS, EVIDENCE
from harness.registry.attestations.contents import (
    Contents,
    contents_of_bill,
    contents_of_image,
    not_as_locked,
)
from harness.registry.attestations.keys import PublicKey, known_keys
from harness.registry.attestations.provenance import PROVENANCE, provenance_of
from harness.registry.oci import Repository

KINDS = {PROVENANCE: "provenance", CONTENTS: "bill of materials", EVIDENCE: "evidence of a tag"}


@dataclass(frozen=True)
class ImageCheck:
    """The result of one check: `right` is None if there was nothing to check."""

    name: str
    right: bool | None
    detail: str


def check_offline(
    engine: Engine, image: Image, matrix: Matrix, repository: str | None, notify: Notify
) -> tuple[ImageCheck, ...]:
    """Check an image against its lock, and against what was signed about it, without building or downloading anything.

    With a `repository`, the statements beside the image there are checked as well, which asks the registry.

    Raises:
        UserError: when the engine cannot export the image, or the registry fails.
    """
    notify("reading what is in the image")
    contents = contents_of_image(engine, image)
    known = known_keys(matrix.signatures.keys)
    signed: list[Signed] = []
    pulled = {name.partition("@")[2] for name in image.digests}
    for digest in sorted(pulled | kept_manifests(image).keys()):
        signed += signed_kept(digest, known) if repository is None else _beside(repository, digest, known)
    if not signed:
        here = "kept here; `matrix pull` and `matrix load` keep it, --registry looks there"
        where = f"beside it in {repository}" if repository else here
        return (_of_lock(image, matrix, contents), ImageCheck("signatures", None, f"no statement is {where}"))
    return (_of_lock(image, matrix, contents), *_of_statements(signed, image, contents))


def _beside(repository: str, digest: str, known: Mapping[str, PublicKey]) -> list[Signed]:
    place = Repository(repository)
    return signed_beside(place, digest, known) if place.manifest(digest) else []


def _of_lock(image: Image, matrix: Matrix, contents: Contents) -> ImageCheck:
    stack = matrix.stacks.get(image.labels.get(f"{PREFIX}.stack", ""))
    lock = lock_file(stack) if stack else None
    if stack is None or lock is None or not lock.is_file() or file_hash(lock) != image.labels.get(f"{PREFIX}.lock"):
        return ImageCheck("lock", None, "its lock is not that of this checkout; check out its revision")
    locked = locked_versions(lock)
    differing = not_as_locked(contents, locked, stack)
    others = "those of the base image" if stack.torch_from_base else "the app"
    told = "; ".join(differing) or f"installed are the {len(locked)} packages that {lock.name} names, and {others}"
    return ImageCheck("lock", not differing, told)


def _of_statements(signed: Sequence[Signed], image: Image, contents: Contents) -> list[ImageCheck]:
    """Return a check for each kind of statement; statements by unknown keys are shown, but decide nothing."""
    kinds = sorted({one.statement.kind for one in signed}, key=lambda kind: (kind not in KINDS, kind))
    checks = [_of_kind(kind, [s for s in signed if s.statement.kind == kind], image, contents) for kind in kinds]
    if not any(one.name for one in signed):
        key = signed[0].key
        trusting = f"`matrix keys --trust {key.line}` trusts {key.fingerprint}"
        checks.append(ImageCheck("signatures", False, f"none is signed by a key that is known here; {trusting}"))
    return checks


def _of_kind(kind: str, signed: Sequence[Signed], image: Image, contents: Contents) -> ImageCheck:
    name, known = KINDS.get(kind, kind), [one for one in signed if one.name]
    if not known:
        return ImageCheck(name, None, f"signed by {signed[0].signer}")
    for one in known:
        predicate = one.statement.predicate
        wrong: Mapping[str, bool] = {
            PROVENANCE: _definition(predicate) != _definition(provenance_of(image)),
            CONTENTS: kind == CONTENTS and contents_of_bill(predicate) != contents,
        }
        if wrong.get(kind, False):
            return ImageCheck(name, False, f"signed by {one.signer}, but contradicts the image")
    by = " and ".join(sorted({one.signer for one in known}))
    return ImageCheck(
        name, True, f"signed by {by}" if kind == EVIDENCE else f"signed by {by}, and agrees with the image"
    )


def _definition(predicate: Mapping[str, Any]) -> object:
    return predicate.get("buildDefinition")
