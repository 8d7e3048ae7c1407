"""Repair of a damaged folder of images: the index, from what is whole among the blobs."""

from contextlib import suppress

from harness.base.errors import UserError
from harness.base.files.storage import read_regular
from harness.base.text import one_line
from harness.host.engine import Notify
from harness.registry.oci import IMAGE_INDEX, Descriptor, Manifest, descriptor_in, object_in, objects_in
from harness.registry.saved.layout import LARGEST_TEXT, SAVE_AGAIN, ImageFolder
from harness.registry.saved.saved_image import NAME, SavedImage, with_artifacts


def repair(place: ImageFolder, say: Notify) -> None:
    """Have the index name what is whole, where anything is damaged.

    `say` gets a line for each image that is lost, as far as the index still names it, and for lost statements.

    Raises:
        UserError: when it cannot be written.
    """
    with suppress(UserError):
        place.images()
        return
    images = _whole_images(place, say)
    if images or place.has_index:
        place.write_index(images)


def _whole_images(place: ImageFolder, say: Notify) -> list[SavedImage]:
    """Return the images that can be told from the blobs alone."""
    index = b""
    with suppress(OSError):
        index = read_regular(place.folder / "index.json")
    images: dict[str, SavedImage] = {}
    artifacts: dict[str, list[Manifest]] = {}
    for manifest in sorted(_manifests(place), key=lambda one: one.digest.encode() in index):
        if "artifactType" in manifest.parsed:
            artifacts.setdefault(str(descriptor_in(manifest, "subject").get("digest")), []).append(manifest)
            continue
        with suppress(UserError):
            image = place.image("", manifest)
            if image.own_name and all(_has_room_of(place, layer) for layer in image.layers):
                # Of one that was replaced the index does not speak.
                images[image.own_name] = SavedImage(image.own_name, manifest, image.config)
    found = with_artifacts({image.manifest.digest: image for image in images.values()}, artifacts)
    named, statements = _told(index)
    for name in named:
        if name not in images:
            say(f"{place.folder}: the image of {one_line(name)} is damaged; {SAVE_AGAIN}")
    lost = statements - sum(map(len, artifacts.values()))
    if lost > 0:
        say(f"{place.folder}: {lost} signed statements are damaged and left out")
    return found


def _manifests(place: ImageFolder) -> list[Manifest]:
    """Return all that can be read of manifests among the blobs, the oldest first."""
    files: list[tuple[float, str]] = []
    with suppress(OSError):
        for file in (place.folder / "blobs" / "sha256").iterdir():
            status = file.lstat()
            if status.st_size <= LARGEST_TEXT:
                files.append((status.st_mtime, f"sha256:{file.name}"))
    found = []
    for _, digest in sorted(files):
        with suppress(UserError):
            found.append(place.manifest(digest))
    return found


def _has_room_of(place: ImageFolder, blob: Descriptor) -> bool:
    """Return whether there is a file of a blob's size; it is read where it is needed."""
    with suppress(OSError):
        return place.file(str(blob["digest"])).lstat().st_size == int(blob["size"])
    return False


def _told(index: bytes) -> tuple[list[str], int]:
    """Return the names of images in an index that may be damaged, and how many artifacts it lists."""
    listed = objects_in(Manifest(index, IMAGE_INDEX).parsed, "manifests")
    names = [object_in(entry, "annotations").get(NAME) for entry in listed]
    return [name for name in names if isinstance(name, str)], sum("artifactType" in entry for entry in listed)
