"""Finds images by their labels, which anybody can write, and remembers which images this checkout has built."""

import os
from collections.abc import Iterable, Iterator, Mapping

from harness.base.paths import BUILDS
from harness.environments.docker.images import PREFIX, Image, Inputs, all_by_labels, cell_labels, inputs_of
from harness.environments.docker.source_state import is_dirty, source_revision
from harness.host.engine import Engine
from harness.matrix.cells import Cell

# The ids of the images built here, one per line; ON_OTHERS follows the id of an image built on somebody else's.
OWN_IMAGES = BUILDS / "own-images.txt"
ON_OTHERS = " on-others"


def remember(image: Image, *, on_others: bool = False) -> None:
    """Note durably that an image was built here; `on_others`: FROM an image that was not, so its content is unknown."""
    OWN_IMAGES.parent.mkdir(parents=True, exist_ok=True)
    with OWN_IMAGES.open("a", encoding="ascii") as stream:
        stream.write(f"{image.id}{ON_OTHERS * on_others}\n")
        stream.flush()
        os.fsync(stream.fileno())


def find_by_labels(engine: Engine, labels: Mapping[str, str]) -> Image | None:
    """Return the image that has all these labels; None if there is none.

    Images that were built here come first, because no other image can replace them; then the newest. If everything is
    committed now, images of uncommitted changes are ignored.
    """
    found = list(_committed(all_by_labels(engine, labels)))
    return next(_own(found), found[0] if found else None)


def find_cell_image(engine: Engine, cell: Cell, inputs: Inputs) -> Image | None:
    """Return the image of a cell, made from these inputs, built here or pulled."""
    return find_by_labels(engine, {**inputs.wanted, **cell_labels(cell, inputs.labels), f"{PREFIX}.kind": "cell"})


def current_image(engine: Engine, cell: Cell) -> Image | None:
    """The image of a cell that runs of this checkout would use now."""
    return find_cell_image(engine, cell, inputs_of(engine, cell.stack))


def find_stack_image(engine: Engine, inputs: Inputs) -> Image | None:
    """Return the image of a stack, made from these inputs."""
    return find_by_labels(engine, inputs.wanted_of("stack"))


def find_own_stack_image(engine: Engine, inputs: Inputs) -> Image | None:
    """Return the image of a stack that this checkout has built from these inputs, if the engine still has it."""
    return next(_committed(_own(all_by_labels(engine, inputs.wanted_of("stack")))), None)


def find_runtime_image(engine: Engine, inputs: Inputs) -> Image | None:
    """Return the runtime image built here, which holds everything below the app, so that a new app needs no download.

    Images of others are never used, because an image built on a runtime counts as built here.
    """
    return next(_own(all_by_labels(engine, inputs.wanted_of("runtime"))), None)


def own_ids() -> frozenset[str]:
    """Return the ids of the images that this checkout has built, including images that are gone."""
    return frozenset(line.removesuffix(ON_OTHERS) for line in _noted())


def is_own(image: str) -> bool:
    """Return whether this checkout has built the image with this id and the images below it."""
    return image in _noted()


def _noted() -> list[str]:
    return OWN_IMAGES.read_text(encoding="ascii").splitlines() if OWN_IMAGES.is_file() else []


def _own(images: Iterable[Image]) -> Iterator[Image]:
    own = _noted()
    return (image for image in images if image.id in own)


def _committed(images: Iterable[Image]) -> Iterator[Image]:
    """Leave out images of uncommitted changes if everything is committed now, as labels cannot tell their source.

    They are rebuilt in seconds, because the runtime below the app is kept.
    """
    now = source_revision()
    return (image for image in images if now is None or is_dirty(now) or not is_dirty(image.revision))
