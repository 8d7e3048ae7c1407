"""Loads images from a folder that `matrix save` wrote into an engine, and refuses anything that was changed."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UnknownNameError, UserError
from harness.base.text import safe_text
from harness.environments.docker.images import PREFIX, Image, find, tag_of_cell
from harness.environments.docker.own_images import current_image
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors
from harness.matrix.cells import Matrix
from harness.matrix.load import nearest
from harness.registry.attestations.attached import MOST_STATEMENT_BYTES, SIGNER, Signed, keep_signed, opened_bundle
from harness.registry.attestations.keys import known_keys
from harness.registry.oci import MOST_REFERRERS, Manifest, blobs_of, digest_of, object_in
from harness.registry.saved.engine_archive import archive_of, give_to_engine
from harness.registry.saved.layout import SAVE_AGAIN, ImageFolder, manifest_of
from harness.registry.saved.saved_image import SavedImage
from harness.registry.tags.known_good_tags import ALIAS


@dataclass(frozen=True)
class Loaded:
    """An image that was loaded, or was here before: its names, its signers, and whether this checkout would run it."""

    cell: str
    tag: str
    image: str
    digest: str
    was_here: bool
    signed_by: tuple[str, ...]
    current: bool


def load_cells(engine: Engine, folder: Path, names: Sequence[str], matrix: Matrix, notify: Notify) -> list[Loaded]:
    """Load the images of cells from a folder, all if none is named; the engine gets nothing before all is checked.

    Raises:
        UserError: when an image is missing or was changed, or the engine refuses it.
    """
    place = ImageFolder(folder)
    chosen = _chosen(place, names)
    for image in chosen:
        _check_name(folder, image)
        _check_statements(folder, image)
    here = {image.name: found for image in chosen if (found := _here(engine, image))}
    missing = [image for image in chosen if image.name not in here]
    manifests = [image.manifest for image in missing] + [one for image in chosen for one in image.artifacts]
    _check_blobs(place, manifests, notify)
    if missing:
        give_to_engine(engine, {tag_of_cell(image.name): image for image in missing}, place.open, notify)
    loaded = []
    for image in chosen:
        found = _here(engine, image)
        if found is None:
            raise UserError(f"{folder}: the engine made another image of {image.name}; `matrix verify` cannot check it")
        with engine_errors(f"tagging {image.name}"):
            engine.client.api.tag(found.id, *tag_of_cell(image.name).rsplit(":", 1))
        loaded.append(_loaded(engine, place, image, found, matrix, was_here=image.name in here))
    return loaded


def saved_archive(folder: Path, ids: Collection[str]) -> Iterator[bytes]:
    """Yield the archive of the image to which engines give one of these ids; nothing is yielded before all is checked.

    Raises:
        UserError: when the image is missing or was changed.
    """
    place = ImageFolder(folder)
    image = next((image for image in place.images() if image.ids & set(ids)), None)
    if image is None:
        raise UserError(f"{folder}: has no such image any more")
    _check_name(folder, image)
    _check_blobs(place, [image.manifest], lambda _: None)
    yield from archive_of({tag_of_cell(image.name): image}, place.open)


def _check_blobs(place: ImageFolder, manifests: Iterable[Manifest], notify: Notify) -> None:
    for blob in {str(blob["digest"]): blob for manifest in manifests for blob in blobs_of(manifest)}.values():
        place.check(blob, notify)


def _chosen(place: ImageFolder, names: Sequence[str]) -> list[SavedImage]:
    there = {image.name: image for image in place.images()}
    for name in names:
        if name not in there:
            raise UnknownNameError(f"{place.folder}: has no image of {name}; {nearest(name, sorted(there))}")
    return [image for name, image in there.items() if not names or name in names]


def _check_name(folder: Path, image: SavedImage) -> None:
    """Refuse an image with the name of another cell: its own labels say which cell it is of."""
    if image.name == ALIAS or image.name.startswith(f"{ALIAS}-"):
        # Loading the image would move that tag in the engine.
        raise UserError(
            f"{folder}: has an image named {safe_text(image.name)}, as only `matrix promote` names one; {SAVE_AGAIN}"
        )
    if image.name != image.own_name:
        own = safe_text(image.own_name) if image.own_name else "no cell"
        raise UserError(f"{folder}: the image named {safe_text(image.name)} is of {own}; {SAVE_AGAIN}")


def _check_statements(folder: Path, image: SavedImage) -> None:
    """Refuse more or larger statements about an image than anybody makes; many may name the same file."""
    size = sum(blob["size"] for artifact in image.artifacts for blob in blobs_of(artifact))
    if len(image.artifacts) > MOST_REFERRERS or size > MOST_STATEMENT_BYTES:
        raise UserError(
            f"{folder}: has {len(image.artifacts)} statements of {size} bytes about the image {image.name}, more than "
            f"{MOST_REFERRERS} or {MOST_STATEMENT_BYTES}; do not trust it"
        )


def _here(engine: Engine, image: SavedImage) -> Image | None:
    """Return the image in the engine, found by any id that an engine may give it; None if the engine lacks it."""
    for name in image.ids:
        found = find(engine, name)
        if found and (found.layers, dict(found.labels)) == (image.unpacked, image.labels):
            return found
    return None


def _loaded(
    engine: Engine, place: ImageFolder, image: SavedImage, found: Image, matrix: Matrix, *, was_here: bool
) -> Loaded:
    known = known_keys(matrix.signatures.keys)
    signed: list[Signed] = []
    for artifact in image.artifacts:
        bundle, about = _content(place, image, artifact)
        line = object_in(artifact.parsed, "annotations").get(SIGNER)
        if one := opened_bundle(bundle, about.digest, line, known):
            keep_signed(about, bundle, one.key.line)
            signed.append(one)
    name = image.labels[f"{PREFIX}.cell"]
    cell = matrix.cells.get(name)
    current = current_image(engine, cell) if cell else None
    return Loaded(
        cell=name,
        tag=tag_of_cell(image.name),
        image=found.id,
        digest=image.manifest.digest,
        was_here=was_here,
        signed_by=tuple(sorted({one.signer for one in signed})),
        current=current is not None and current.id == found.id,
    )


def _content(place: ImageFolder, image: SavedImage, artifact: Manifest) -> tuple[bytes, Manifest]:
    """Return a bundle, and the manifest of this image that it is about: the folder's, or one from a registry."""
    _, *layers = blobs_of(artifact)
    bundle, *others = [place.content(layer) for layer in layers] or [b""]
    about = manifest_of(others[0]) if others else image.manifest
    of_image = blobs_of(about)[0].get("digest") == digest_of(image.config)
    return bundle, about if of_image else image.manifest
