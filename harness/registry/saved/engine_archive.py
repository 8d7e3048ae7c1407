"""Reads and writes the archives in which engines export and import images, those of Docker 20.10 and newer ones."""

import gzip
import hashlib
import json
import posixpath
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from docker.errors import create_api_error_from_http_exception
from requests.exceptions import HTTPError

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.files.json_bounds import json_object, load_json
from harness.base.files.storage import PIECE_BYTES
from harness.environments.docker.image_tree import PieceStream
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors, follow_transfer
from harness.registry.oci import IMAGE_INDEX, Descriptor, blobs_of, digest_of
from harness.registry.saved.layout import LAYOUT
from harness.registry.saved.saved_image import SavedImage

LAYER = "application/vnd.oci.image.layer.v1.tar"
PACKED = {b"\x1f\x8b": f"{LAYER}+gzip", b"\x28\xb5": f"{LAYER}+zstd"}
CONTAINERD_NAME = "io.containerd.image.name"
# The fastest level of gzip, although a stick is slower still.
LEVEL = 1
LARGEST_JSON = 4 << 20
ALIGNED = 512


@dataclass
class EngineAnswer:
    """The content of an engine's archive: small files by path, and for each layer what `keep` returned."""

    texts: dict[str, bytes] = field(default_factory=dict)
    layers: dict[str, Descriptor] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def images(self) -> Iterator[tuple[bytes, tuple[Descriptor, ...]]]:
        """Yield the configuration and the layers of each image."""
        for entry in load_json(self.texts["manifest.json"]):
            names = [self.links.get(name, name) for name in entry["Layers"]]
            yield self.texts[entry["Config"]], tuple(self.layers[name] for name in names)

    def manifest(self, config: bytes) -> bytes | None:
        """Return the engine's own manifest of an image; None if the engine has no manifests."""
        for text in self.texts.values():
            told = json_object(text)
            if "layers" in told and (told.get("config") or {}).get("digest") == digest_of(config):
                return text
        return None


Keep = Callable[[Path, Descriptor], Descriptor]
"""Takes a file with a layer, and its descriptor; returns the descriptor of the blob that was kept."""


def read_from_engine(engine: Engine, images: Sequence[str], scratch: Path, keep: Keep, notify: Notify) -> EngineAnswer:
    """Read images from an engine, each layer once.

    Raises:
        UserError: when the engine does not export them, or `scratch` has no room.
    """
    given = EngineAnswer()
    with _archive_of(engine, images, notify) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            if member.issym():
                target = posixpath.join(posixpath.dirname(member.name), member.linkname)
                given.links[member.name] = posixpath.normpath(target)
            elif stream and _is_layer(member.name):
                _take_blob(given, member, stream, scratch, keep)
            elif stream and member.size <= LARGEST_JSON:
                given.texts[member.name] = stream.read()
    return given


@contextmanager
def _archive_of(engine: Engine, images: Sequence[str], notify: Notify) -> Iterator[tarfile.TarFile]:
    doing = "reading images from the engine"
    api = engine.client_without_timeout.api
    try:
        with engine_errors(doing):
            # Do not use the library, which exports one image at a time, each with all its layers.
            answer = api.get(f"{api.base_url}/v{api.api_version}/images/get", params={"names": images}, stream=True)
            with _refusals():
                answer.raise_for_status()
            stream = BufferedReader(PieceStream(_counted(answer.iter_content(PIECE_BYTES), doing, notify)), PIECE_BYTES)
            with answer, tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE_BYTES) as archive:
                yield archive
    except tarfile.TarError:
        raise UserError(f"{doing}: it stopped in the middle; give the same command again") from None


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn an HTTP error into an error of the Docker library with the engine's message."""
    try:
        yield
    except HTTPError as error:
        create_api_error_from_http_exception(error)


def _take_blob(given: EngineAnswer, member: tarfile.TarInfo, stream: IO[bytes], scratch: Path, keep: Keep) -> None:
    """Take a layer or, from newer engines, any blob named by its digest only, which may also be a small text."""
    with tempfile.NamedTemporaryFile(dir=scratch) as spooled:
        digest = hashlib.sha256()
        while piece := stream.read(PIECE_BYTES):
            digest.update(piece)
            spooled.write(piece)
        spooled.flush()
        file = Path(spooled.name)
        with file.open("rb") as again:
            begins = again.read(2)
            if begins[:1] in b"{[" and member.size <= LARGEST_JSON:
                text = begins + again.read()
                # Ignore what is not JSON, because a layer may begin with the same byte: the name of its first file.
                with suppress(ValueError):
                    load_json(text)
                    given.texts[member.name] = text
                    return
        media_type = PACKED.get(begins, LAYER)
        blob = {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": member.size}
        given.layers[member.name] = keep(file, blob)


def packed(file: Path, scratch: Path, store: Callable[[Path, Descriptor], None]) -> Descriptor:
    """Pack a layer, with the same result each time, and store it; return its descriptor."""
    with tempfile.NamedTemporaryFile(dir=scratch) as made:
        with file.open("rb") as plain, gzip.GzipFile("", "wb", LEVEL, made, mtime=0) as stream:
            shutil.copyfileobj(plain, stream, PIECE_BYTES)
        made.flush()
        path = Path(made.name)
        blob = {"mediaType": PACKED[b"\x1f\x8b"], "digest": f"sha256:{file_hash(path)}", "size": path.stat().st_size}
        store(path, blob)
        return blob


def _is_layer(name: str) -> bool:
    return name.endswith("/layer.tar") or name.startswith("blobs/")


def give_to_engine(
    engine: Engine, images: Mapping[str, SavedImage], opened: Callable[[Descriptor], IO[bytes]], notify: Notify
) -> None:
    """Import images into an engine, each with its tag, in an archive that old and new engines can read.

    Raises:
        UserError: when the engine refuses them.
    """
    doing = "giving images to the engine"
    with engine_errors(doing):
        pieces = _counted(engine.while_disk_has_room(archive_of(images, opened), doing), doing, notify)
        follow_transfer(
            engine.while_disk_has_room(engine.client_without_timeout.api.load_image(pieces), doing),
            doing,
            lambda _: None,
        )


def archive_of(images: Mapping[str, SavedImage], opened: Callable[[Descriptor], IO[bytes]]) -> Iterator[bytes]:
    """Yield the archive that engines import: an image layout for newer ones, with the list that older ones read.

    Raises:
        UserError: when a blob is not what its descriptor says, because somebody changed it after it was checked.
    """
    entries, listed = [], []
    blobs: dict[str, Descriptor] = {}
    for tag, image in images.items():
        annotations = {CONTAINERD_NAME: f"docker.io/library/{tag}"}
        entries.append({**image.manifest.descriptor, "annotations": annotations})
        config, *layers = blobs_of(image.manifest)
        paths = [_path(layer) for layer in layers]
        listed.append({"Config": _path(config), "RepoTags": [tag], "Layers": paths})
        blobs |= {str(blob["digest"]): blob for blob in (config, *layers)}
        manifest = image.manifest
        yield from _member(_path(manifest.descriptor), manifest.content)
    for blob in blobs.values():
        with opened(blob) as stream:
            yield from _blob_member(blob, stream)
    index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": entries}
    for name, content in (
        ("oci-layout", LAYOUT),
        ("index.json", json.dumps(index).encode()),
        ("manifest.json", json.dumps(listed).encode()),
    ):
        yield from _member(name, content)
    yield bytes(2 * ALIGNED)


def _blob_member(blob: Descriptor, stream: IO[bytes]) -> Iterator[bytes]:
    digest, left = hashlib.sha256(), int(blob["size"])
    yield _head(_path(blob), left)
    # Further bytes would be members of their own, which name any images.
    while piece := stream.read(min(left, PIECE_BYTES)):
        digest.update(piece)
        left -= len(piece)
        yield piece
    if f"sha256:{digest.hexdigest()}" != blob["digest"]:
        raise UserError(f"blob {blob['digest']} was changed while it was read; do not trust who can write there")
    yield _filling(int(blob["size"]))


def _member(name: str, content: bytes) -> Iterator[bytes]:
    yield _head(name, len(content))
    yield content
    yield _filling(len(content))


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def _filling(size: int) -> bytes:
    """Return what fills the last block of a member."""
    return bytes(-size % ALIGNED)


def _path(blob: Descriptor) -> str:
    return f"blobs/{str(blob['digest']).replace(':', '/')}"


def _counted(pieces: Iterable[bytes], doing: str, notify: Notify) -> Iterator[bytes]:
    size: Any = 0
    for piece in pieces:
        size += len(piece)
        notify(f"{doing}: {size / 1e6:.0f} MB")
        yield piece
