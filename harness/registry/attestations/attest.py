"""Signs what is known of a pushed image: its inputs, its contents, and what its runs showed."""

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.environments.docker.images import PREFIX, Image, labelled_epochs
from harness.environments.docker.own_images import is_own
from harness.environments.docker.source_state import NO_TIME
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import locked_versions
from harness.host.engine import Engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell
from harness.registry.attestations.attached import attach_signed, kept_manifests, signed_kept
from harness.registry.attestations.bundles import Statement
from harness.registry.attestations.contents import (
    Contents,
    bill_of_materials,
    contents_of_bill,
    contents_of_image,
    not_as_locked,
)
from harness.registry.attestations.keys import OWN_NAME, SigningKey, ensure_own_key, own_key
from harness.registry.attestations.provenance import PROVENANCE, provenance_of
from harness.registry.oci import Repository
from harness.registry.tags.promotions import KnownGood

CONTENTS = "https://cyclonedx.org/bom"
EVIDENCE = "urn:vpoc:known-good:v1"
SHOWN = 3


def attest_image(engine: Engine, cell: Cell, image: Image, name: str, digest: str, notify: Notify) -> None:
    """Sign provenance and contents of a cell's image, and store both beside it; `name` is its repository.

    Raises:
        UserError: when its contents differ from its lock, or the registry refuses.
    """
    key, repository = signing_key(notify), Repository(name)
    notify(f"signing what is in {cell.id}")
    contents = _signed_before(image, key) or contents_of_image(engine, image)
    for statement in statements_of_image(cell, image, contents, name, digest, notify):
        attach_signed(repository, statement, key)


def _signed_before(image: Image, key: SigningKey) -> Contents | None:
    """Return an image's contents as this key signed them before, because they never change and take minutes to read."""
    kept = (one for digest in kept_manifests(image) for one in signed_kept(digest, {OWN_NAME: key.public}))
    bills = (one.statement.predicate for one in kept if one.name and one.statement.kind == CONTENTS)
    return next(map(contents_of_bill, bills), None)


def signing_key(notify: Notify) -> SigningKey:
    """Return the user's key, and notify the user if it has to be made.

    Raises:
        UserError: when the key cannot be read or written.
    """
    if own_key() is None:
        notify("making a key to sign with; `matrix keys` shows it")
    return ensure_own_key()


def statements_of_image(
    cell: Cell, image: Image, contents: Contents, name: str, digest: str, notify: Notify
) -> list[Statement]:
    """Return the provenance and contents of a cell's image as statements; `digest` is that of its manifest.

    If the image's lock is not here, the bill says that the contents were not compared with it. An image that was not
    built here has no provenance: its labels alone say what it was made from, and anybody can write those.

    Raises:
        UserError: when the contents differ from the lock.
    """
    as_locked = is_as_locked(cell, image, contents)
    if not as_locked:
        notify(f"{cell.id}: its lock is not here: the signature says what is installed, not that the lock names it")
    epochs = labelled_epochs(image.labels)
    bill = bill_of_materials(contents, name, digest, epochs.app if epochs else NO_TIME, as_locked=as_locked)
    said = {CONTENTS: bill}
    if is_own(image.id):
        said[PROVENANCE] = provenance_of(image)
    else:
        notify(f"{cell.id}: its image was not built here: the signature says what is installed, not what it is made of")
    return [Statement(name, digest, kind, predicate) for kind, predicate in said.items()]


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


def is_as_locked(cell: Cell, image: Image, contents: Contents) -> bool:
    """Return whether the packages of an image are those that its lock names; False if that lock is not here.

    Raises:
        UserError: when packages differ from a lock that is here, naming them.
    """
    lock = lock_file(cell.stack)
    if not lock.is_file() or file_hash(lock) != image.labels.get(f"{PREFIX}.lock"):
        return False
    if differing := not_as_locked(contents, locked_versions(lock), cell.stack):
        raise UserError(f"{cell.id}: is not what its lock names: {'; '.join(differing[:SHOWN])}; build it again")
    return True
