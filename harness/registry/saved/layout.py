"""A folder of images as an OCI image layout: each blob is a file named by its digest, so each layer is there once.

`index.json` follows exactly from the blobs that it names, so any change in the folder is noticed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.json_bounds import json_object
from harness.base.files.storage import (
    PIECE_BYTES,
    cannot_be_written,
    copy_durably,
    make_folder_durably,
    open_regular,
    read_regular,
    remove_unfinished,
    write_durably,
)
from harness.host.engine_errors import Notify
from harness.registry.oci import (
    DIGEST,
    IMAGE_MANIFEST,
    LARGEST_CONFIGURATION,
    Descriptor,
    Manifest,
    blobs_of,
    descriptor_in,
    digest_of,
    object_in,
)
from harness.registry.saved.saved_image import NAME, SavedImage, index_of
from harness.registry.saved.shapes import OfConfiguration, OfManifest, Shape

LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
SAVE_AGAIN = "`matrix save` to an empty folder writes it again"
LARGEST_TEXT = 4 << 20
# Largest size of all manifests and configurations of a folder together; each has some kilobytes.
LARGEST_IN_ALL = 64 << 20


class ImageFolder:
    """A folder of images that `matrix save` writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_index(self) -> bool:
        """Return whether images were saved there, as far as this user can see."""
        return os.access(self.folder / "index.json", os.F_OK)

    def file(self, digest: str) -> Path:
        """Return the file of a blob.

        Raises:
            UserError: when the digest is invalid.
        """
        if not DIGEST.fullmatch(digest):
            raise UserError(f"{self.folder}: {digest[:80]!r} is not a digest of a blob; {SAVE_AGAIN}")
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def images(self) -> list[SavedImage]:
        """Return the images, sorted by name; everything except their layers is compared with its digest.

        Raises:
            UserError: when there are none, or anything was changed.
        """
        try:
            layout, index = (read_regular(self.folder / name, LARGEST_TEXT) for name in ("oci-layout", "index.json"))
        except OSError as error:
            if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not self.folder.is_dir():
                raise NoSuchFileError(f"{self.folder}: no such folder; give the one that `matrix save` wrote") from None
            told = f"{self.folder}: no images were saved here, or not to the end: {error.strerror}; {SAVE_AGAIN}"
            raise NoSuchFileError(told) from None
        changed = UserError(f"{self.folder / 'index.json'}: was changed or is damaged; {SAVE_AGAIN}")
        entries = json_object(index).get("manifests")
        if layout != LAYOUT or not isinstance(entries, list):
            raise changed
        images: dict[str, SavedImage] = {}
        artifacts: dict[str, list[Manifest]] = {}
        size = 0
        for entry in entries:
            described: Descriptor = entry if isinstance(entry, dict) else {}
            manifest = self.manifest(str(described.get("digest")))
            if "artifactType" in manifest.parsed:
                artifacts.setdefault(str(descriptor_in(manifest, "subject").get("digest")), []).append(manifest)
            else:
                name = str(object_in(described, "annotations").get(NAME))
                images[manifest.digest] = self.image(name, manifest)
                size += len(images[manifest.digest].config)
            size += len(manifest.content)
            if size > LARGEST_IN_ALL:
                raise changed
        found = [replace(one, artifacts=tuple(artifacts.get(name, ()))) for name, one in images.items()]
        if index != index_of(found):
            raise changed
        return sorted(found, key=lambda image: image.name)

    def write_index(self, images: Iterable[SavedImage]) -> None:
        """Write the index of the images that are here; until then the earlier index holds.

        Raises:
            UserError: when the index cannot be written.
        """
        write_durably(self.folder / "oci-layout", LAYOUT)
        write_durably(self.folder / "index.json", index_of(images))

    def content(self, blob: Descriptor, most: int = LARGEST_TEXT) -> bytes:
        """Return the content of a small blob.

        Raises:
            UserError: when the blob is missing or was changed.
        """
        file = self.file(str(blob.get("digest")))
        with self._reading(file):
            content = read_regular(file, most)
        if digest_of(content) != blob["digest"] or len(content) != blob.get("size"):
            raise self._changed(file)
        return content

    def check(self, blob: Descriptor, notify: Notify = lambda _: None) -> None:
        """Compare a blob of any size with its digest.

        Raises:
            UserError: when the blob is missing or was changed.
        """
        file, digest, size = self.file(str(blob.get("digest"))), hashlib.sha256(), 0
        with self._reading(file), open_regular(file) as stream:
            # Read no further than the size, because a longer file may have terabytes of holes.
            while size <= blob.get("size", 0) and (piece := stream.read(PIECE_BYTES)):
                digest.update(piece)
                size += len(piece)
                notify(f"checking {self.folder}: {size / 1e6:.0f} MB")
        if (f"sha256:{digest.hexdigest()}", size) != (blob["digest"], blob.get("size")):
            raise self._changed(file)

    def holds(self, blob: Descriptor, notify: Notify = lambda _: None) -> bool:
        """Return whether a blob is here and unchanged."""
        with suppress(UserError):
            self.check(blob, notify)
            return True
        return False

    def open(self, blob: Descriptor) -> BinaryIO:
        """Open a blob to read it.

        Raises:
            UserError: when the blob cannot be opened.
        """
        file = self.file(str(blob["digest"]))
        with self._reading(file):
            return open_regular(file)

    def put(self, content: bytes, media_type: str) -> Descriptor:
        """Store a small blob; return its descriptor.

        Raises:
            UserError: when the blob cannot be written.
        """
        blob = {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}
        if not self.holds(blob):
            write_durably(self.file(str(blob["digest"])), content)
        return blob

    def put_file(self, file: Path, blob: Descriptor, notify: Notify = lambda _: None) -> None:
        """Store a file as a blob, completely or not at all. A blob that is here already is not written again.

        Raises:
            UserError: when the blob cannot be written.
        """
        if not self.holds(blob, notify):
            copy_durably(file, self.file(str(blob["digest"])))

    def remove_unnamed(self) -> None:
        """Remove the blobs that no image here uses any more.

        Raises:
            UserError: when a folder cannot be read.
        """
        kept = {str(blob["digest"]).removeprefix("sha256:") for blob in self._named()}
        place = self.folder / "blobs" / "sha256"
        remove_unfinished(place)
        for file in place.iterdir():
            if file.name not in kept and DIGEST.fullmatch(f"sha256:{file.name}"):
                file.unlink(missing_ok=True)

    def make(self) -> None:
        """Make the folder.

        Raises:
            UserError: when the folder cannot be made.
        """
        try:
            make_folder_durably(self.folder / "blobs" / "sha256")
        except OSError as error:
            raise cannot_be_written(self.folder, error) from None

    def _named(self) -> Iterator[Descriptor]:
        for image in self.images():
            for manifest in (image.manifest, *image.artifacts):
                yield manifest.descriptor
                yield from blobs_of(manifest)

    def manifest(self, digest: str) -> Manifest:
        """Return a manifest by its digest.

        Raises:
            UserError: when the manifest is missing or was changed.
        """
        file = self.file(digest)
        with self._reading(file):
            content = read_regular(file, LARGEST_TEXT)
        if digest_of(content) != digest:
            raise self._changed(file)
        manifest = manifest_of(content)
        self._check_shape(OfManifest, content)
        return manifest

    def image(self, name: str, manifest: Manifest) -> SavedImage:
        """Return an image with its configuration, after checking both."""
        config = blobs_of(manifest)[0]
        if config["size"] > LARGEST_CONFIGURATION:
            raise UserError(
                f"{self.file(config['digest'])}: variables and labels of an image take {config['size']} bytes, more "
                f"than {LARGEST_CONFIGURATION}; make them shorter"
            )
        image = SavedImage(name, manifest, self.content(config))
        self._check_shape(OfConfiguration, image.config)
        if len(image.layers) != len(image.unpacked):
            raise self._changed(self.file(manifest.digest))
        return image

    def _check_shape(self, shape: type[Shape], content: bytes) -> None:
        try:
            shape.model_validate(json_object(content))
        except ValidationError:
            raise self._changed(self.file(digest_of(content))) from None

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror or error}; {SAVE_AGAIN}") from None

    @staticmethod
    def _changed(file: Path) -> UserError:
        return UserError(f"{file}: was changed or is damaged; {SAVE_AGAIN}")


def manifest_of(content: bytes) -> Manifest:
    """Return a manifest with the media type that its content names."""
    return Manifest(content, str(json_object(content).get("mediaType", IMAGE_MANIFEST)))
