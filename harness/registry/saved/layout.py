"""A folder of images by the OCI's image layout: each blob a file named by its digest, so that no layer is there twice.

`index.json` follows from the blobs it names, byte by byte: nothing in such a folder can change without being seen.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from harness.base.errors import NoSuchFileError, UserError
from harness.base.json_bounds import load_json
from harness.base.storage import (
    PIECE_BYTES,
    copy_durably,
    make_folder_durably,
    open_regular,
    read_regular,
    remove_unfinished,
    write_durably,
)
from harness.host.engine import Notify
from harness.registry.oci import (
    DIGEST,
    IMAGE_INDEX,
    IMAGE_MANIFEST,
    Descriptor,
    Manifest,
    blobs_of,
    descriptor_in,
    digest_of,
)

LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
NAME = "org.opencontainers.image.ref.name"
SAVE_AGAIN = "`matrix save` writes it again"
# Of zlib: a gzip file, with its largest window.
GZIP = 31


@dataclass(frozen=True)
class SavedImage:
    """An image in a folder: its name, manifest and configuration, and the artifacts that refer to it."""

    name: str
    manifest: Manifest
    config: bytes
    artifacts: tuple[Manifest, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        """Return the ids that engines have for it: the digest of its configuration, or, of newer ones, its manifest."""
        return frozenset((digest_of(self.config), self.manifest.digest))

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Return what its configuration says."""
        return Manifest(self.config, "").parsed

    @property
    def labels(self) -> Mapping[str, str]:
        """Return its labels."""
        told = self.configuration.get("config")
        return dict((told.get("Labels") or {}) if isinstance(told, dict) else {})

    @property
    def unpacked(self) -> tuple[str, ...]:
        """Return the digests of its layers as they are unpacked."""
        told = self.configuration.get("rootfs")
        return tuple(map(str, (told.get("diff_ids") or ()) if isinstance(told, dict) else ()))

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        """Return the descriptors of its layers."""
        return blobs_of(self.manifest)[1:]


class ImageFolder:
    """A folder of images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_index(self) -> bool:
        """Return whether images were saved there."""
        return (self.folder / "index.json").exists()

    def file(self, digest: str) -> Path:
        """Return the place of a blob.

        Raises:
            UserError: when this is no digest.
        """
        if not DIGEST.fullmatch(digest):
            raise UserError(f"{self.folder}: {digest[:80]!r} is no digest of a blob; {SAVE_AGAIN}")
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def images(self) -> list[SavedImage]:
        """Return the images, by name; all but their layers is compared with its digest.

        Raises:
            UserError: when there is none, or anything was changed.
        """
        try:
            layout, index = (read_regular(self.folder / name) for name in ("oci-layout", "index.json"))
        except OSError as error:
            told = f"{self.folder}: no images were saved here, or not to the end: {error.strerror}; {SAVE_AGAIN}"
            raise NoSuchFileError(told) from None
        entries = Manifest(index, IMAGE_INDEX).parsed.get("manifests")
        found = self._read(entries) if layout == LAYOUT and isinstance(entries, list) else []
        if index != _index(found):
            raise self._changed(self.folder / "index.json")
        return found

    def sound_images(self, notify: Notify) -> tuple[list[SavedImage], bool]:
        """Return those images of a folder of which all but the layers is sound, and whether that is all of them."""
        if not self.has_index:
            return [], True
        try:
            return self.images(), True
        except UserError as error:
            notify(f"{error}; of the images that are not named now only those that are sound stay listed")
        with suppress(OSError):
            index = read_regular(self.folder / "index.json")
            entries = Manifest(index, IMAGE_INDEX).parsed.get("manifests")
            return self._read(entries if isinstance(entries, list) else [], only_sound=True), False
        return [], False

    def _read(self, entries: Iterable[Any], *, only_sound: bool = False) -> list[SavedImage]:
        """Return the images of an index, by name; with `only_sound` without those that cannot be read."""
        images: dict[str, SavedImage] = {}
        artifacts: dict[str, list[Manifest]] = {}
        for entry in entries:
            with suppress(UserError) if only_sound else nullcontext():
                described: Descriptor = entry if isinstance(entry, dict) else {}
                manifest = self._manifest(str(described.get("digest")))
                if "artifactType" in manifest.parsed:
                    artifacts.setdefault(str(descriptor_in(manifest, "subject").get("digest")), []).append(manifest)
                else:
                    images[manifest.digest] = self._image(described, manifest)
        found = [
            SavedImage(one.name, one.manifest, one.config, tuple(artifacts.get(digest, ())))
            for digest, one in images.items()
        ]
        return sorted(found, key=lambda image: image.name)

    def _image(self, described: Descriptor, manifest: Manifest) -> SavedImage:
        """Return the image with a manifest; UserError where its blobs are not of the shape that images have."""
        annotations = described.get("annotations")
        name = annotations.get(NAME) if isinstance(annotations, dict) else None
        image = SavedImage(str(name), manifest, self.content(blobs_of(manifest)[0]))
        told = image.configuration
        labels, digests = (
            part.get(key) if isinstance(part, dict) else None
            for part, key in ((told.get("config"), "Labels"), (told.get("rootfs"), "diff_ids"))
        )
        labelled = isinstance(labels, dict) and all(isinstance(value, str) for value in labels.values())
        if not (labelled and isinstance(digests, list) and len(digests) == len(image.layers)):
            raise self._changed(self.file(manifest.digest))
        return image

    def write_index(self, images: Iterable[SavedImage]) -> None:
        """Say which images are here; until then those that were before are.

        Raises:
            UserError: when it cannot be written.
        """
        write_durably(self.folder / "oci-layout", LAYOUT)
        write_durably(self.folder / "index.json", _index(images))

    def content(self, blob: Descriptor, most: int = 4 << 20) -> bytes:
        """Return a small blob.

        Raises:
            UserError: when it is not there or was changed.
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
            UserError: when it is not there or was changed.
        """
        file, digest, size = self.file(str(blob.get("digest"))), hashlib.sha256(), 0
        with self._reading(file), open_regular(file) as stream:
            while piece := stream.read(PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
                notify(f"checking {self.folder}: {size / 1e6:.0f} MB")
        if (f"sha256:{digest.hexdigest()}", size) != (blob["digest"], blob.get("size")):
            raise self._changed(file)

    def unpacks_to(self, blob: Descriptor, digest: str, notify: Notify) -> bool:
        """Return whether a packed layer is there as it should be, and has this digest when it is unpacked."""
        packed, plain, unpack, size = hashlib.sha256(), hashlib.sha256(), zlib.decompressobj(GZIP), 0
        with suppress(OSError, UserError, zlib.error), open_regular(self.file(str(blob.get("digest")))) as stream:
            while piece := stream.read(PIECE_BYTES):
                packed.update(piece)
                size += len(piece)
                while piece and not unpack.eof:
                    # In pieces: a few bytes may be those of gigabytes.
                    plain.update(unpack.decompress(piece, PIECE_BYTES))
                    piece = unpack.unconsumed_tail
                notify(f"checking {self.folder}: {size / 1e6:.0f} MB")
        found = [f"sha256:{one.hexdigest()}" for one in (packed, plain)]
        return unpack.eof and not unpack.unused_data and found == [blob.get("digest"), digest]

    def holds(self, blob: Descriptor) -> bool:
        """Return whether a blob is there, as it should be."""
        with suppress(UserError):
            self.check(blob)
            return True
        return False

    def open(self, blob: Descriptor) -> BinaryIO:
        """Open a blob to read it.

        Raises:
            UserError: when it cannot be opened.
        """
        file = self.file(str(blob["digest"]))
        with self._reading(file):
            return open_regular(file)

    def put(self, content: bytes, media_type: str) -> Descriptor:
        """Store a small blob; return its descriptor.

        Raises:
            UserError: when it cannot be written.
        """
        blob = {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}
        if not self.holds(blob):
            write_durably(self.file(str(blob["digest"])), content)
        return blob

    def put_file(self, file: Path, blob: Descriptor) -> None:
        """Store a file as a blob, whole or not at all. One that is there already is not written again.

        Raises:
            UserError: when it cannot be written.
        """
        if not self.holds(blob):
            copy_durably(file, self.file(str(blob["digest"])))

    def remove_unnamed(self) -> None:
        """Remove blobs that no image here has any more.

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
            UserError: when it cannot be made.
        """
        try:
            make_folder_durably(self.folder / "blobs" / "sha256")
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be made: {error.strerror}; choose another folder") from None

    def _named(self) -> Iterator[Descriptor]:
        for image in self.images():
            for manifest in (image.manifest, *image.artifacts):
                yield manifest.descriptor
                yield from blobs_of(manifest)

    def _manifest(self, digest: str) -> Manifest:
        file = self.file(digest)
        with self._reading(file):
            content = read_regular(file, 4 << 20)
        manifest = manifest_of(content)
        whole = all(DIGEST.fullmatch(str(b.get("digest"))) and type(b.get("size")) is int for b in blobs_of(manifest))
        if digest_of(content) != digest or not whole:
            raise self._changed(file)
        return manifest

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
    """Return a manifest with the type that it says it has."""
    told: Any = None
    with suppress(ValueError):
        told = load_json(content)
    return Manifest(content, str(told.get("mediaType", IMAGE_MANIFEST)) if isinstance(told, dict) else IMAGE_MANIFEST)


def _index(images: Iterable[SavedImage]) -> bytes:
    entries: list[Descriptor] = []
    for image in sorted(images, key=lambda image: image.name):
        entries.append({**image.manifest.descriptor, "annotations": {NAME: image.name}})
        artifacts = sorted(image.artifacts, key=lambda one: one.digest)
        entries += ({**one.descriptor, "artifactType": one.parsed.get("artifactType")} for one in artifacts)
    document = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": entries}
    return json.dumps(document, indent=1, sort_keys=True).encode()
