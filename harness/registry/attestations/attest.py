"""Sign what is known of an image that was pushed: what it was made from, what is in it, what its runs showed."""

from harness.base.errors import UserError
from harness.base.storage import file_hash
from harness.environments.images import PREFIX, Image, told_epochs
from harness.environments.pins import lock_file
from harness.environments.source_state import NO_TIME
from harness.host.engine import Engine, Notify
from harness.matrix.cells import Cell
from harness.registry.attestations.attached import attach_signed
from harness.registry.attestations.bundles import Statement
from harness.registry.attestations.contents import (
    Contents,
    bill_of_materials,
    contents_of_image,
    contents_of_lock,
    not_as_locked,
)
from harness.registry.attestations.keys import SigningKey, ensure_own_key, own_key
from harness.registry.attestations.provenance import PROVENANCE, provenance_of
from harness.registry.oci import Repository
from harness.registry.tags.promotions import KnownGood

CONTENTS = "https://cyclonedx.org/bom"
EVIDENCE = "urn:vpoc:known-good:v1"
SHOWN = 3


def attest_image(engine: Engine, cell: Cell, image: Image, name: str, digest: str, notify: Notify) -> None:
    """Sign provenance and contents of a cell's image, and store both beside it; `name` is its repository.

    Raises:
        UserError: when what is in it is not what its lock names, or the registry refuses.
    """
    key, repository = signing_key(notify), Repository(name)
    notify(f"signing what is in {cell.id}")
    for statement in statements_of_image(cell, image, contents_of_image(engine, image), name, digest):
        attach_signed(repository, statement, key)


def signing_key(notify: Notify) -> SigningKey:
    """Return the user's key; says so where it has to be made.

    Raises:
        UserError: when it cannot be read or written.
    """
    if own_key() is None:
        notify("making a key to sign with; `matrix keys` shows it")
    return ensure_own_key()


def statements_of_image(cell: Cell, image: Image, contents: Contents, name: str, digest: str) -> list[Statement]:
    """Return provenance and contents of a cell's image; `digest` is that of its manifest.

    Raises:
        UserError: when what is in it is not what its lock names.
    """
    check_as_locked(cell, image, contents)
    epochs = told_epochs(image.labels)
    bill = bill_of_materials(contents, name, digest, epochs.app if epochs else NO_TIME)
    said = ((PROVENANCE, provenance_of(image)), (CONTENTS, bill))
    return [Statement(name, digest, kind, predicate) for kind, predicate in said]


def attest_evidence(evidence: KnownGood) -> None:
    """Sign the evidence of a tag that was pushed, and store it beside its image.

    Raises:
        UserError: when the registry refuses.
    """
    if evidence.repository is None or evidence.digest is None:
        return
    told = evidence.model_dump(mode="json", by_alias=True)
    statement = Statement(evidence.repository, evidence.digest, EVIDENCE, told)
    attach_signed(Repository(evidence.repository), statement, ensure_own_key())


def check_as_locked(cell: Cell, image: Image, contents: Contents) -> None:
    """Refuse an image in which other packages are installed than its lock names, where that lock is here.

    Raises:
        UserError: naming those that differ.
    """
    lock = lock_file(cell.stack)
    if not lock.is_file() or file_hash(lock) != image.labels.get(f"{PREFIX}.lock"):
        return
    if differing := not_as_locked(contents, contents_of_lock(lock)):
        raise UserError(f"{cell.id}: is not what its lock names: {'; '.join(differing[:SHOWN])}; build it again")
