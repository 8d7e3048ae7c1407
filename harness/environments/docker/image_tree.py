"""Reads the files of an image one by one, and compares two images. Nothing in an image is started."""

import hashlib
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from typing import IO, Any

from harness.environments.docker.images import Image
from harness.environments.executors.docker import LABEL
from harness.host.engine import Engine
from harness.host.engine_errors import engine_errors

PIECE = 1 << 20
# Files that an engine makes in each container.
OF_CONTAINER = {".dockerenv", "dev/console", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"}
# Parts of an image's configuration that decide how a container of it runs.
CONFIGURED = (
    *("Env", "Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts"),
    *("Healthcheck", "OnBuild", "Shell", "StopSignal"),
)
# Most differences that are kept; somebody else's image may have more than memory holds.
MOST_DIFFERENCES = 1000
PARTS = ("kind", "mode", "owner", "link", "content", "attributes")
# How an archive names extended attributes, such as the capabilities that a program gets.
ATTRIBUTE = "SCHILY.xattr."


@dataclass(frozen=True)
class ImageFile:
    """A file, folder or link in an image, without its time. `attributes`: a digest of the extended ones."""

    kind: str
    mode: int
    owner: tuple[int, int]
    link: str
    content: str
    attributes: str = ""


def tree_of(engine: Engine, image: Image) -> dict[str, ImageFile]:
    """Return every file of an image, by its path without the leading slash.

    Raises:
        UserError: when the engine cannot export the image.
    """
    with image_files(engine, image) as files:
        return dict(_entries(files))


def differences_from(engine: Engine, image: Image, tree: Mapping[str, ImageFile]) -> list[str]:
    """Return a line for each file in which an image differs from a tree, as in `differences`.

    Raises:
        UserError: when the engine cannot export the image.
    """
    with image_files(engine, image) as files:
        return differences(_entries(files), tree)


@contextmanager
def image_files(engine: Engine, image: Image) -> Iterator[Iterable[tuple[str, tarfile.TarInfo, IO[bytes] | None]]]:
    """Yield the files of an image one by one: path, entry in the archive, and content.

    Raises:
        UserError: when the engine cannot export the image.
    """
    with engine_errors(f"reading what is in image {image.id}"):
        # Export a container that is never started, which shows the files as seen inside, not layer by layer.
        made = engine.client.api.create_container(
            image.id,
            command=["none"],
            entrypoint=["none"],
            use_config_proxy=False,
            # If this process dies, the folder is gone, and the next command that runs cells removes the container.
            labels={LABEL: f"/proc/{os.getpid()}"},
        )
        try:
            pieces = engine.client_without_timeout.api.export(made["Id"], chunk_size=PIECE)
            stream = BufferedReader(PieceStream(pieces), PIECE)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=PIECE) as archive:
                yield each_file(archive)
        finally:
            engine.client.api.remove_container(made["Id"], force=True, v=True)


def each_file(archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the files of an archive: path, entry in the archive, and content."""
    while member := archive.next():
        yield member.name.removeprefix("./"), member, archive.extractfile(member) if member.isreg() else None
        # Drop the entries, or else the archive keeps them all: their names alone may be gigabytes.
        archive.members = []  # type: ignore[attr-defined]


def differences(first: Iterable[tuple[str, ImageFile]], second: Mapping[str, ImageFile]) -> list[str]:
    """Return a line for each file in which two images differ, sorted by path.

    The first image is read once and not kept; after MOST_DIFFERENCES differing files it is read no further.
    """
    only_in_second, found = dict(second), dict[str, str]()
    for path, one in first:
        other = only_in_second.pop(path, None)
        if one == other:
            continue
        if len(found) == MOST_DIFFERENCES:
            return [*(line for _, line in sorted(found.items())), "and more: the rest was not compared"]
        found[path] = _difference(path, one, other)
    found |= {path: _difference(path, None, other) for path, other in only_in_second.items()}
    return [line for _, line in sorted(found.items())]


def configured(engine: Engine, image: Image) -> dict[str, Any]:
    """Return the parts of an image's configuration that decide how a container of it runs."""
    with engine_errors(f"looking at image {image.id}"):
        told = engine.client.api.inspect_image(image.id)["Config"]
    return {name: told.get(name) or None for name in CONFIGURED}


def _difference(path: str, one: ImageFile | None, other: ImageFile | None) -> str:
    if one is None or other is None:
        return f"/{path}: only in the {'second' if one is None else 'first'}"
    parts = [
        f"{part} {_shown(part, getattr(one, part))} and {_shown(part, getattr(other, part))}"
        for part in PARTS
        if getattr(one, part) != getattr(other, part)
    ]
    return f"/{path}: {', '.join(parts)}"


def _shown(part: str, value: Any) -> str:
    if part == "mode":
        return f"{value:04o}"
    return value[:12] or "none" if part in ("content", "attributes") else str(value)


def _entries(files: Iterable[tuple[str, tarfile.TarInfo, IO[bytes] | None]]) -> Iterator[tuple[str, ImageFile]]:
    return ((name, _entry(member, stream)) for name, member, stream in files if name not in OF_CONTAINER)


def _entry(member: tarfile.TarInfo, stream: IO[bytes] | None) -> ImageFile:
    digest = hashlib.sha256()
    while stream and (piece := stream.read(PIECE)):
        digest.update(piece)
    other = "file" if member.isreg() else "special file"
    kind = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}.get(member.type, other)
    content = digest.hexdigest() if kind == "file" else ""
    attributes = sorted(one for one in member.pax_headers.items() if one[0].startswith(ATTRIBUTE))
    digested = hashlib.sha256(ascii(attributes).encode()).hexdigest() if attributes else ""
    # Mask the mode, because an engine's archive may include the bits of the file type.
    return ImageFile(kind, member.mode & 0o7777, (member.uid, member.gid), member.linkname, content, digested)


class PieceStream(RawIOBase):
    """A file that reads pieces of bytes from first to last."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True, because it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer, at most as many as fit; return 0 at the end."""
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        part = self._left[: len(buffer)]
        buffer[: len(part)] = part
        self._left = self._left[len(part) :]
        return len(part)
