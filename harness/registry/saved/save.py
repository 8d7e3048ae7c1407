"""Saves images of cells to a folder, such as on a USB stick, with the signed statements about them."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.locks import locked
from harness.base.files.storage import cannot_be_written
from harness.base.paths import CACHE
from harness.base.text import safe_text
from harness.environments.docker.images import CELLS, Image, name_by_labels, tag_name
from harness.host.engine import Engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell
from harness.registry.attestations.attached import annotations_of, keep_signed, kept_manifests, signed_kept
from harness.registry.attestations.attest import signing_key, statements_of_image
from harness.registry.attestations.bundles import BUNDLE, Statement, sign
from harness.registry.attestations.contents import Contents, contents_of_image
from harness.registry.attestations.keys import SigningKey, known_keys
from harness.registry.oci import EMPTY, EMPTY_TYPE, IMAGE_MANIFEST, Descriptor, Manifest
from harness.registry.push_pull import built_image
from harness.registry.saved.engine_archive import LAYER, packed, read_from_engine
from harness.registry.saved.layout import ImageFolder, manifest_of
from harness.registry.saved.saved_image import SavedImage

# Keep temporary files here, because a stick may be slow and lack the room for them.
SCRATCH = CACHE / "saving"
CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True)
class Saved:
    """A saved cell: the digest of its manifest in the folder, and the numbers of its signed statements and layers."""

    cell: str
    image: str
    digest: str
    statements: int
    layers: int


def save_cells(engine: Engine, cells: Sequence[Cell], folder: Path, notify: Notify) -> list[Saved]:
    """Save the images of cells as this checkout would build them; blobs that the folder has already are not rewritten.

    Stacks are saved one by one, so that finished ones survive an interruption and the same command resumes.

    Raises:
        UserError: when an image is not built or differs from its lock, there is no room, or the folder was changed.
    """
    images = {cell.id: (cell, built_image(engine, cell)) for cell in cells}
    for cell, image in images.values():
        _check_name(cell, image)
    place = ImageFolder(folder)
    place.make()
    key = signing_key(notify)
    saved: list[Saved] = []
    with _room(), locked(folder / ".lock", notify), _scratch(notify) as scratch:
        ordered = sorted(images.values(), key=lambda of: of[0].stack.name)
        for _, of_stack in groupby(ordered, key=lambda of: of[0].stack.name):
            saved += _save_stack(engine, place, list(of_stack), key, scratch, notify)
        place.remove_unnamed()
    return saved


def _check_name(cell: Cell, image: Image) -> None:
    """Refuse an image that could not be loaded again; an image of others can have any labels."""
    own = name_by_labels(image.labels)
    if own != tag_name(cell):
        raise UserError(
            f"the image of {cell.id} is named {safe_text(own)} by its labels, so `matrix load` would refuse it; "
            f"`docker rmi --force {image.id[:19]}`, then `matrix build {cell.id}`"
        )


def _save_stack(
    engine: Engine,
    place: ImageFolder,
    wanted: list[tuple[Cell, Image]],
    key: SigningKey,
    scratch: Path,
    notify: Notify,
) -> list[Saved]:
    """Save images that share most of their layers, and add them to the folder's index."""
    before = place.images() if place.has_index else []
    made = _read(engine, place, [image for _, image in wanted], scratch, notify)
    saved, now = [], {image.name: image for image in before}
    # Cache by layers, because images of one stack mostly have the same, and reading them takes long.
    read = cache(lambda layers: contents_of_image(engine, next(i for _, i in wanted if i.layers == layers)))
    for cell, image in wanted:
        manifest, config = made[image.id]
        artifacts = tuple(_statements(place, cell, image, manifest, key, read, notify))
        now[tag_name(cell)] = SavedImage(tag_name(cell), manifest, config, artifacts)
        saved.append(Saved(cell.id, image.id, manifest.digest, len(artifacts), len(image.layers)))
    place.write_index(now.values())
    return saved


def _read(
    engine: Engine, place: ImageFolder, images: Sequence[Image], scratch: Path, notify: Notify
) -> dict[str, tuple[Manifest, bytes]]:
    """Read images from the engine into the folder; return the manifest and configuration of each."""

    def keep(file: Path, blob: Descriptor) -> Descriptor:
        """Store a layer as the engine packed it, or else pack it here, with the same result each time."""
        if blob["mediaType"] != LAYER:
            place.put_file(file, blob, notify)
            return blob
        return packed(file, scratch, place.put_file)

    given = read_from_engine(engine, [image.id for image in images], scratch, keep, notify)
    made = {}
    for config, layers in given.images():
        image = _of(images, config)
        own = given.manifest(config)
        if own is None:
            document = {"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": place.put(config, CONFIG)}
            own = json.dumps({**document, "layers": list(layers)}, sort_keys=True).encode()
        manifest = manifest_of(own)
        place.put(config, CONFIG)
        place.put(own, manifest.media_type)
        made[image.id] = (manifest, config)
    return made


def _of(images: Iterable[Image], config: bytes) -> Image:
    """Return the image with a configuration, by its content, because engines use other ids."""
    told = SavedImage("", Manifest(b"", ""), config)
    return next(image for image in images if (image.layers, dict(image.labels)) == (told.unpacked, told.labels))


def _statements(
    place: ImageFolder,
    cell: Cell,
    image: Image,
    manifest: Manifest,
    key: SigningKey,
    read: Callable[[tuple[str, ...]], Contents],
    notify: Notify,
) -> Iterator[Manifest]:
    """Store the signed statements about an image: those in copies from registries, and those that are signed now."""
    known = known_keys({})
    kept = {**kept_manifests(image), manifest.digest: manifest}
    if not any(one.key == key.public for one in signed_kept(manifest.digest, known)):
        notify(f"signing what is in {cell.id}")
        for statement in statements_of_image(cell, image, read(image.layers), CELLS, manifest.digest, notify):
            keep_signed(manifest, sign(statement, key), key.public.line)
    for digest, about in kept.items():
        for one in signed_kept(digest, known):
            yield _artifact(place, one.statement, one.bundle, one.key.line, about, manifest)


def _artifact(
    place: ImageFolder, statement: Statement, bundle: bytes, line: str, about: Manifest, subject: Manifest
) -> Manifest:
    """Store a bundle, with the manifest that it is about if that is one of a registry; return the artifact."""
    layers = [place.put(bundle, BUNDLE)]
    if about.digest != subject.digest:
        layers.append(place.put(about.content, about.media_type))
    document = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": BUNDLE,
        "config": place.put(EMPTY, EMPTY_TYPE),
        "layers": layers,
        "subject": subject.descriptor,
        "annotations": annotations_of(statement, line),
    }
    made = Manifest(json.dumps(document, sort_keys=True).encode(), IMAGE_MANIFEST)
    place.put(made.content, made.media_type)
    return made


@contextmanager
def _scratch(notify: Notify) -> Iterator[Path]:
    """Yield a local folder for layers in transit, after removing the files of a killed command."""
    with locked(SCRATCH.with_suffix(".lock"), notify):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        SCRATCH.mkdir()
        try:
            yield SCRATCH
        finally:
            shutil.rmtree(SCRATCH, ignore_errors=True)


@contextmanager
def _room() -> Iterator[None]:
    """Report a lack of room with the folder: the target, or the local folder where layers are packed."""
    try:
        yield
    except OSError as error:
        raise cannot_be_written(error.filename or CACHE, error) from None
