"""The one way into a folder that a program which is not trusted writes to: its files are read and removed.

Every name is opened relative to the descriptor of the folder above it, and no link is followed at any level. Only
regular files are opened for reading, so nothing blocks and no device is touched, and no more is read of one than the
caller's limit.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from harness.base.files.tree_removal import remove_below
from harness.base.text import one_line

PIECE = 1 << 20
# Of `st_blocks`.
BLOCK = 512
# For what is read by pieces.
ANY_SIZE = 1 << 63
# Names in one folder that are looked at; the app makes a few dozen.
MOST_NAMES = 10_000
# A run that makes more is ended.
MOST_LEVELS = 128
# A folder or file is first opened by name only, which has no effect on whatever it is.
NAME_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}
LONGEST_SHOWN = 80
# Of what is a sentence.
LONGEST_SAID = 400
PLAIN = re.compile(r"[\w.,=+@/<>-]*")
GREW = "grew beyond {most} bytes while it was read"


class NotAFileError(Exception):
    """A file that cannot be read as one; the text says what it is instead."""


@dataclass(frozen=True)
class Entry:
    """A name in a folder: what it stands for in words, its size, and the device and inode.

    `changed`: when anything of it was last changed, by this host's clock, in seconds since 1970; no program sets that.
    """

    name: str
    kind: str
    size: int
    inode: tuple[int, int]
    changed: float

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return self.kind == KINDS[stat.S_IFREG]

    @property
    def is_folder(self) -> bool:
        """Return whether it is a folder."""
        return self.kind == KINDS[stat.S_IFDIR]


class OpenFile:
    """A regular file that is open for reading, with its size, holes, mode and inode when it was opened."""

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self._descriptor = descriptor
        self.size = status.st_size
        self.holes = status.st_size - status.st_blocks * BLOCK
        self.mode = status.st_mode
        self.inode = (status.st_dev, status.st_ino)

    def read(self, offset: int, most: int) -> bytes:
        """Return up to `most` bytes from an offset; fewer where the file ends."""
        parts = []
        while most > 0 and (part := self._piece(offset, most)):
            parts.append(part)
            offset, most = offset + len(part), most - len(part)
        return b"".join(parts)

    def pieces(self, most: int) -> Iterator[bytes]:
        """Yield the content from its beginning.

        Raises:
            NotAFileError: after `most` bytes, where it has more: it grew since it was opened.
        """
        offset = 0
        while part := self._piece(offset, PIECE):
            offset += len(part)
            if offset > most:
                raise NotAFileError(GREW.format(most=most))
            yield part

    def data(self, most: int) -> Iterator[tuple[int, bytes]]:
        """Yield the content from its beginning without what is in holes, each piece with its offset.

        Raises:
            NotAFileError: as `pieces`.
        """
        end = 0
        while stretch := self._stretch(end):
            offset, end = stretch
            while offset < end and (part := self._piece(offset, end - offset)):
                if offset + len(part) > most:
                    raise NotAFileError(GREW.format(most=most))
                yield offset, part
                offset += len(part)

    def _stretch(self, offset: int) -> tuple[int, int] | None:
        """Return where the next data begins and ends; None where only a hole is left."""
        with _errors():
            try:
                begin = os.lseek(self._descriptor, offset, os.SEEK_DATA)
                return begin, os.lseek(self._descriptor, begin, os.SEEK_HOLE)
            except OSError as error:
                # Some file systems tell nothing of holes.
                if error.errno == errno.EINVAL and offset < self.size:
                    return offset, self.size
                if error.errno not in (errno.ENXIO, errno.EINVAL):
                    raise
        return None

    def _piece(self, offset: int, most: int) -> bytes:
        with _errors():
            return os.pread(self._descriptor, min(most, PIECE), offset)


@dataclass(frozen=True)
class UntrustedTree:
    """A folder by its path, which others write to. Names are relative to it: `output/model.pt`.

    Every method raises FileNotFoundError where the name is not there, and NotAFileError where it is not what is asked
    for, cannot be opened, or is too large. No other error comes from what is in the folder.
    """

    path: PurePath

    @contextmanager
    def open(self, name: str | PurePath, most: int) -> Iterator[OpenFile]:
        """Yield a regular file of at most `most` bytes."""
        with self._folder(*PurePath(name).parts[:-1]) as folder, _errors():
            descriptor, status = _open_file(folder, PurePath(name).name, most)
        try:
            yield OpenFile(descriptor, status)
        finally:
            os.close(descriptor)

    def read(self, name: str | PurePath, most: int) -> bytes:
        """Return the content of a file of at most `most` bytes."""
        with self.open(name, most) as file:
            return b"".join(file.pieces(most))

    def tail(self, name: str | PurePath, most: int, last: int) -> tuple[int, bytes]:
        """Return the last bytes of a file of at most `most`, and how many lines end before them."""
        with self.open(name, most) as file:
            begin, skipped = max(0, file.size - last), 0
            for offset in range(0, begin, PIECE):
                skipped += file.read(offset, min(PIECE, begin - offset)).count(b"\n")
            return skipped, file.read(begin, last)

    def hash(self, name: str | PurePath, most: int) -> str:
        """Return the SHA-256 of a file of at most `most` bytes."""
        digest = hashlib.sha256()
        with self.open(name, most) as file:
            for part in file.pieces(most):
                digest.update(part)
        return digest.hexdigest()

    def entries(self, folder: str | PurePath = "") -> list[Entry]:
        """Return what is in a folder, in no order.

        Raises:
            NotAFileError: also where more than MOST_NAMES are in it.
        """
        with self._folder(*PurePath(folder).parts) as parent, _errors():
            found = []
            for name in _names(parent):
                try:
                    found.append(_entry(name, os.stat(name, dir_fd=parent, follow_symlinks=False)))
                except FileNotFoundError:
                    continue
            return found

    def names(self, folder: str | PurePath = "") -> list[str]:
        """Return the names in a folder, in no order: asked ten times a second, so nothing is looked at."""
        with self._folder(*PurePath(folder).parts) as parent, _errors():
            return list(_names(parent))

    def some_names(self) -> list[str]:
        """Return the names in the folder, in no order; of more than MOST_NAMES only so many."""
        with self._folder() as parent, _errors():
            return list(islice(_names(parent), MOST_NAMES))

    def files(self, folder: str | PurePath = "") -> Iterator[Entry]:
        """Yield the files below a folder, by their names in it, in no order; each folder is opened once.

        Raises:
            NotAFileError: also where more than MOST_NAMES are in one, or they are more than MOST_LEVELS deep.
        """
        with self._folder(*PurePath(folder).parts) as parent, _errors():
            yield from _files_below(parent, "", MOST_LEVELS)

    def look(self, name: str | PurePath) -> Entry:
        """Return what a name stands for."""
        with self._folder(*PurePath(name).parts[:-1]) as folder, _errors():
            inner = PurePath(name).name
            return _entry(inner, os.stat(inner, dir_fd=folder, follow_symlinks=False))

    def remove(self, name: str | PurePath) -> str | None:
        """Remove a file or a folder with everything in it, however deep; return what cannot be removed, in words."""
        try:
            with self._folder(*PurePath(name).parts[:-1], writable=True) as folder, _errors():
                return remove_below(folder, PurePath(name).name)
        except FileNotFoundError:
            return None
        except NotAFileError as error:
            return str(error)

    @contextmanager
    def _folder(self, *parts: str, writable: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder, which was reached without a link."""
        if any(part in ("..", "/") for part in parts):
            raise NotAFileError("leads out of the folder")
        with _errors():
            descriptor = _folder_of(os.open(self.path, NAME_ONLY), "")
            for part in parts:
                try:
                    inner = os.open(part, NAME_ONLY, dir_fd=descriptor)
                finally:
                    os.close(descriptor)
                descriptor = _folder_of(inner, part)
        try:
            if writable:
                make_writable(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)


def make_writable(descriptor: int) -> None:
    """Let this user list and change a folder, by its descriptor: its program may have taken that right away."""
    if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with _errors():
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IRWXU)


def shown(name: str | PurePath, most: int = LONGEST_SHOWN) -> str:
    """Return a name as text that is safe to print: of `most` characters, none of which moves a cursor or ends a line.

    It is quoted where it could be taken for words of ours.
    """
    text = one_line(str(name))
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return text if PLAIN.fullmatch(text) else "'{}'".format(text.replace("'", "\\'"))


def _open_file(folder: int, name: str, most: int) -> tuple[int, os.stat_result]:
    """Return the descriptor and the status of a regular file in an open folder."""
    named = os.open(name, NAME_ONLY, dir_fd=folder)
    try:
        status = os.fstat(named)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFileError(f"is {_kind(status)}")
        if status.st_size > most:
            raise NotAFileError(f"has {status.st_size} bytes, more than {most}")
        # The very file that was looked at, whatever has its name by now.
        return os.open(f"/proc/self/fd/{named}", READING), status
    finally:
        os.close(named)


def _folder_of(descriptor: int, name: str) -> int:
    """Return the descriptor if it is a folder's, and close it otherwise."""
    status = os.fstat(descriptor)
    if not stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{shown(name)} is {_kind(status)}, not a folder".strip())
    return descriptor


def _names(parent: int) -> Iterator[str]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.scandir(descriptor) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_NAMES:
                    raise NotAFileError(f"holds more than {MOST_NAMES} names")
                yield entry.name
    finally:
        os.close(descriptor)


def _files_below(folder: int, above: str, levels: int) -> Iterator[Entry]:
    if not levels:
        raise NotAFileError("has folders that are too deep")
    for name in list(_names(folder)):
        try:
            entry = _entry(above + name, os.stat(name, dir_fd=folder, follow_symlinks=False))
            if entry.is_file:
                yield entry
            if not entry.is_folder:
                continue
            inner = _folder_of(os.open(name, NAME_ONLY, dir_fd=folder), name)
        except FileNotFoundError:
            continue
        try:
            yield from _files_below(inner, f"{above}{name}/", levels - 1)
        finally:
            os.close(inner)


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, _kind(status), status.st_size, (status.st_dev, status.st_ino), status.st_ctime)


def _kind(status: os.stat_result) -> str:
    return KINDS.get(stat.S_IFMT(status.st_mode), "of an unknown kind")


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of opening and reading into the two that callers know."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotAFileError(f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        # A null character in it, or half a surrogate.
        raise NotAFileError("cannot be read: no file can have that name") from None
