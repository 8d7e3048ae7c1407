"""Which images this checkout has built: labels are what anybody writes."""

from collections.abc import Iterable, Iterator

from harness.base.paths import BUILDS
from harness.environments.docker.images import Image, Inputs, all_of_inputs, committed
from harness.host.engine import Engine

# Their ids, a line each.
OWN_IMAGES = BUILDS / "own-images.txt"


def remember(image: Image) -> None:
    """Note that an image was built here."""
    OWN_IMAGES.parent.mkdir(parents=True, exist_ok=True)
    with OWN_IMAGES.open("a", encoding="ascii") as stream:
        stream.write(f"{image.id}\n")


def find_own_stack_image(engine: Engine, inputs: Inputs) -> Image | None:
    """Return the image of a stack that this checkout has built from these inputs, where the engine still has it."""
    return next(committed(_own(all_of_inputs(engine, inputs, "stack"))), None)


def find_runtime_image(engine: Engine, inputs: Inputs) -> Image | None:
    """Return the image of all that is below the app, built here: with it nothing is to be fetched for a new app.

    Never one of others: what is built on it counts as built here.
    """
    return next(_own(all_of_inputs(engine, inputs, "runtime")), None)


def own_ids() -> frozenset[str]:
    """Return the ids of the images that this checkout has built, also of those that are gone."""
    return frozenset(OWN_IMAGES.read_text(encoding="ascii").split() if OWN_IMAGES.is_file() else ())


def _own(images: Iterable[Image]) -> Iterator[Image]:
    own = own_ids()
    return (image for image in images if image.id in own)
