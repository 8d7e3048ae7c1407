"""Checks, before any job is submitted, that the nodes of a cluster can get their images from the configured source."""

from pathlib import Path

from harness.base.errors import NoAnswerError, UserError
from harness.environments.docker.images import Image, cell_tag, find, repository_in, tag_name
from harness.environments.docker.node_images import NodeImage, NodeImages
from harness.environments.environment import Environment
from harness.environments.verifier import Verifier
from harness.host.engine import Engine
from harness.matrix.cells import Cell, Preset
from harness.matrix.stacks import Stack
from harness.registry.oci import Repository, descriptor_in
from harness.registry.push_pull import built_image, remote_name
from harness.registry.saved.layout import ImageFolder

PLAIN = Preset(name="plain", description="nothing set")


def images_in_source(engine: Engine, place: str, cell: Cell, verifying: Stack | None, verifier: Verifier) -> NodeImages:
    """Return the images of a cell's runs as nodes get them: from a registry, or from a folder of saved images.

    Runs are verified in the image of the verifying stack's plain cell, which must have exactly the layers built here.

    Raises:
        UserError: when this engine lacks one of the images, or the source lacks it or has another one.
    """
    mine = built_image(engine, cell)
    own = verifier.environment
    if verifying is None or own is None or own.image is None:
        return NodeImages(cell=_in_source(place, cell, mine), no_verifier=verifier.missing)
    plain = Cell(verifying, PLAIN)
    image = mine if plain.id == cell.id else built_image(engine, plain)
    _check_layers(engine, plain, image, own)
    return NodeImages(cell=_in_source(place, cell, mine), verifier=_in_source(place, plain, image))


def _check_layers(engine: Engine, plain: Cell, image: Image, own: Environment) -> None:
    """Refuse an image that was not built here, because other people's images must not verify runs."""
    stack = find(engine, str(own.image))
    if stack is None or stack.layers != image.layers:
        tag = cell_tag(plain)
        raise UserError(
            f"the image of {plain.id} was not built here, and nodes would verify runs in it; "
            f"`docker image rm {tag}`, then `matrix build {plain.id}`"
        )


def _in_source(place: str, cell: Cell, image: Image) -> NodeImage:
    if place.startswith("/"):
        return _saved(Path(place), cell, image)
    return _pushed(place, cell, image)


def _pushed(registry: str, cell: Cell, image: Image) -> NodeImage:
    name = remote_name(registry, cell)
    repository = repository_in(registry)
    remedy = f"`matrix push {cell.id} --registry {registry}` puts it there"
    try:
        manifest = Repository(repository).manifest(tag_name(cell))
    except NoAnswerError:
        if (reference := _known_there(repository, image)) is None:
            raise
        return NodeImage(id=image.id, labels=dict(image.labels), reference=reference, remedy=remedy)
    if manifest is None:
        raise UserError(f"{name}: the nodes pull it, but it is not there; {remedy}")
    reference = f"{repository}@{manifest.digest}"
    ids = (manifest.digest, descriptor_in(manifest, "config").get("digest"))
    if image.id not in ids and reference not in image.digests:
        raise UserError(f"{name}: the nodes pull it, but it is another image than the one here; {remedy}")
    return NodeImage(id=image.id, labels=dict(image.labels), reference=reference, remedy=remedy)


def _known_there(repository: str, image: Image) -> str | None:
    """Return the reference by digest that an image got when it was pushed or pulled; None if it was neither.

    An engine with containerd's store gives an image such a name with the image's own id even if nobody has pushed it.
    """
    names = (name for name in image.digests if name.startswith(f"{repository}@") and not name.endswith(image.id))
    return next(names, None)


def _saved(folder: Path, cell: Cell, image: Image) -> NodeImage:
    """Return the image as it is in a folder of `matrix save`."""
    remedy = f"`matrix save {cell.id} {folder}` puts it there"
    place = ImageFolder(folder)
    saved = next((one for one in place.images() if image.id in one.ids), None) if place.has_index else None
    if saved:
        ids = tuple(sorted(saved.ids))
        return NodeImage(id=image.id, ids=ids, labels=dict(image.labels), archive=str(folder), remedy=remedy)
    raise UserError(f"{folder}: the image of {cell.id} that is here is not there; {remedy}")
