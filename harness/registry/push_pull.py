"""Images to and from a registry. Credentials are the docker command's own."""

from harness.base.errors import UserError
from harness.environments.images import (
    CELLS,
    PREFIX,
    Image,
    cell_tag,
    check_is_of,
    find,
    find_cell_image,
    inputs_of,
    tag_name,
)
from harness.host.engine import Engine, Notify, engine_errors, follow_transfer
from harness.matrix.cells import Cell
from harness.registry.tags.promotions import KnownGood


def remote_name(registry: str, cell: Cell) -> str:
    """Return the name of a cell's image in a registry such as `ghcr.io/me`."""
    return f"{registry.rstrip('/')}/{CELLS}:{tag_name(cell)}"


def push(engine: Engine, cell: Cell, registry: str, notify: Notify) -> tuple[str, Image]:
    """Push the image of a cell as this checkout would build it; return its reference by digest, and the image.

    Raises:
        UserError: when it is not built, or the registry refuses it.
    """
    image = built_image(engine, cell)
    name = remote_name(registry, cell)
    digest = push_image(engine, image.id, name, notify)
    return f"{name.rsplit(':', 1)[0]}@{digest}", image


def built_image(engine: Engine, cell: Cell) -> Image:
    """Return the image of a cell as this checkout would build it.

    Raises:
        UserError: when it is not built.
    """
    image = find_cell_image(engine, cell, inputs_of(engine, cell.stack))
    if image is None:
        raise UserError(f"there is no image of {cell.id} for its current inputs; `matrix build {cell.id}` builds it")
    return image


def push_image(engine: Engine, image: str, name: str, notify: Notify) -> str:
    """Push an image under a name such as `ghcr.io/me/vpoc:cpu-plain`; return the digest of its manifest.

    Raises:
        UserError: when the registry refuses it.
    """
    repository, tag = name.rsplit(":", 1)
    notify(f"pushing {name}")
    with engine_errors(f"pushing {name}"):
        engine.client.api.tag(image, repository, tag)
        events = engine.patient.api.push(repository, tag, stream=True, decode=True)
        digest = follow_transfer(events, f"pushing {name}", notify)
    if digest is None:
        raise UserError(f"pushing {name}: the engine gave no digest; `docker pull {name}` shows it")
    return digest


def pull(engine: Engine, cell: Cell, registry: str, digest: str | None, notify: Notify) -> Image:
    """Pull the image of a cell, by digest where one is given, and give it its local tag.

    Raises:
        UserError: when there is no such image, or it is of another cell.
    """
    name = remote_name(registry, cell)
    repository, tag = name.rsplit(":", 1)
    reference = f"{repository}@{digest}" if digest else name
    with engine_errors(f"pulling {reference}"):
        events = engine.patient.api.pull(repository, digest or tag, stream=True, decode=True)
        follow_transfer(events, f"pulling {reference}", notify)
        image = find(engine, reference)
        if image is None:
            raise UserError(
                f"pulling {reference}: the image was pulled, and was removed before it could be used; pull it again"
            )
        try:
            check_is_of(image, cell, reference)
        except UserError:
            engine.client.api.remove_image(reference)
            raise
        engine.client.api.tag(image.id, *cell_tag(cell).rsplit(":", 1))
    return image


def pull_known_good(engine: Engine, evidence: KnownGood, notify: Notify) -> Image:
    """Return the image of a known-good tag: the one in the engine, or else pulled by digest.

    Raises:
        UserError: when it is in no registry and not here, cannot be pulled, or is of another cell than the evidence.
    """
    # Engines with containerd's image store have other ids for images.
    image = find(engine, evidence.image) or find(engine, evidence.reference)
    if image:
        return image
    if evidence.digest is None or evidence.repository is None:
        raise UserError(f"{evidence.tag}: its image was removed, and is in no registry; promote it again")
    doing = f"pulling {evidence.reference}"
    with engine_errors(doing):
        events = engine.patient.api.pull(evidence.repository, evidence.digest, stream=True, decode=True)
        follow_transfer(events, doing, notify)
    image = find(engine, evidence.reference)
    if image is None or image.labels.get(f"{PREFIX}.cell") != evidence.cell:
        raise UserError(f"{doing}: the pulled image is not of {evidence.cell}; do not trust this registry")
    return image
