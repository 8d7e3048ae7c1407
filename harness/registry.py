"""Images to and from a registry. Credentials are the docker command's own."""

from harness.engine import Engine, Notify, engine_errors, follow_transfer
from harness.errors import UserError
from harness.images import CELLS, Image, cell_tag, check_is_of, find, find_cell_image, inputs_of
from harness.matrix import Cell


def remote_name(registry: str, cell: Cell) -> str:
    """Where a cell's image is in a registry such as `ghcr.io/me`."""
    return f"{registry.rstrip('/')}/{CELLS}:{cell.id}"


def push(engine: Engine, cell: Cell, registry: str, notify: Notify) -> str:
    """Push the image of a cell as this checkout would build it; returns its reference by digest.

    Raises:
        UserError: when it is not built, or the registry refuses it.
    """
    image = find_cell_image(engine, cell, inputs_of(engine, cell.stack))
    if image is None:
        raise UserError(f"there is no image of {cell.id} as it is now; `matrix build {cell.id}` makes it")
    name = remote_name(registry, cell)
    repository, tag = name.rsplit(":", 1)
    with engine_errors(f"pushing {name}"):
        engine.client.api.tag(image.id, repository, tag)
        events = engine.patient.api.push(repository, tag, stream=True, decode=True)
        digest = follow_transfer(events, f"pushing {name}", notify)
    if digest is None:
        raise UserError(f"pushing {name}: the engine gave no digest; `docker pull {name}` tells it")
    return f"{repository}@{digest}"


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
            raise UserError(f"pulling {reference}: it came, and is gone; somebody removed it")
        try:
            check_is_of(image, cell, reference)
        except UserError:
            engine.client.api.remove_image(reference)
            raise
        engine.client.api.tag(image.id, *cell_tag(cell).rsplit(":", 1))
    return image
