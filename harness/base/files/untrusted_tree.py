"""The one way into a folder to which an untrusted program writes: reads and removes its files.

Every name is opened relative to the descriptor of the folder above it, and no link is followed at any level. Only
regular files are opened for reading, so nothing blocks and no device is touched, and no more is read than the caller's
limit.
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
# Unit of `st_blocks`, in bytes.
BLOCK = 512
# Size limit for files that are read in pieces.
ANY_SIZE = 1 << 63
# Most names in one folder; the app makes a few dozen.
MOST_NAMES = 10_000
# Most nested folders: a run that makes more is ended.
MOST_LEVELS = 128
# Longest name of a file below a folder, in characters: a hundred thousand longer ones would fill the memory.
LONGEST_NAME = 4096
# A folder or file is first opened by its name only, which has no effect on it.
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
# Longest name that is shown, in characters.
LONGEST_SHOWN = 80
# Longest sentence of the app's that a message quotes, in characters.
LONGEST_QUOTE = 400
PLAIN = re.compile(r"[\w.,=+@/<>-]*")
GREW = "grew beyond {most} bytes while it was read"


class NotAFileError(Exception):
    """Raised for a file that cannot be read as one; the text says what it is instead."""


@dataclass(frozen=True)
class Entry:
    """A name in a folder: its kind in words, its size in bytes, and its device and inode.

    `changed`: when anything of it was last changed (ctime), in seconds since 1970; no program can set that.
    """

    name: str
    kind: str
    size: int
    inode: tuple[int, int]
    changed: float

    @property
    def is_file(self) -> bool:
        """True if it is a regular file."""
        return self.kind == KINDS[stat.S_IFREG]

    @property
    def is_folder(self) -> bool:
        """True if it is a folder."""
        return self.kind == KINDS[stat.S_IFDIR]


class OpenFile:
    """A regular file that is open for reading, with its size, holes, mode and inode at the time it was opened."""

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self._descriptor = descriptor
        self.size = status.st_size
        self.holes = status.st_size - status.st_blocks * BLOCK
        self.mode = status.st_mode
        self.inode = (status.st_dev, status.st_ino)

    def read(self, offset: int, most: int) -> bytes:
        """Return up to `most` bytes from an offset; fewer at the end of the file."""
        parts = []
        while most > 0 and (part := self._piece(offset, most)):
            parts.append(part)
            offset, most = offset + len(part), most - len(part)
        return b"".join(parts)

    def pieces(self, most: int) -> Iterator[bytes]:
        """Yield the content from its beginning.

        Raises:
            NotAFileError: after `most` bytes, if there are more, because the file grew since it was opened.
        """
        offset = 0
        while part := self._piece(offset, PIECE):
            offset += len(part)
            if offset > most:
                raise NotAFileError(GREW.format(most=most))
            yield part

    def data(self, most: int) -> Iterator[tuple[int, bytes]]:
        """Yield the content from its beginning, without holes, as pieces with their offsets.

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
                # Some file systems do not report holes.
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
    """A folder by its path, to which others write. Names are relative to it: `output/model.pt`.

    Every method raises FileNotFoundError if the name does not exist, and NotAFileError if it is not of the requested
    kind, cannot be opened, or is too large. The content of the folder causes no other errors.
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
        """Return the last `last` bytes of a file of at most `most` bytes, and the number of line ends before them."""
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
        """Return the entries of a folder, in no particular order.

        Raises:
            NotAFileError: also when it has more than MOST_NAMES entries.
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
        """Return the names in a folder, in no particular order, unexamined: this is called ten times a second."""
        with self._folder(*PurePath(folder).parts) as parent, _errors():
            return list(_names(parent))

    def some_names(self) -> list[str]:
        """Return the names in the folder, in no particular order, but no more than MOST_NAMES."""
        with self._folder() as parent, _errors():
            return list(islice(_names(parent), MOST_NAMES))

    def files(self, folder: str | PurePath = "") -> Iterator[Entry]:
        """Yield the files below a folder, by their names in it, in no particular order; each folder is opened once.

        Raises:
            NotAFileError: also when one has more than MOST_NAMES entries, or they are nested more than MOST_LEVELS
                deep, or a name is longer than LONGEST_NAME.
        """
        with self._folder(*PurePath(folder).parts) as parent, _errors():
            yield from _files_below(parent, "", MOST_LEVELS)

    def look(self, name: str | PurePath) -> Entry:
        """Return the entry of a name."""
        with self._folder(*PurePath(name).parts[:-1]) as folder, _errors():
            inner = PurePath(name).name
            return _entry(inner, os.stat(inner, dir_fd=folder, follow_symlinks=False))

    def remove(self, name: str | PurePath) -> str | None:
        """Remove a file, or a folder with everything in it at any depth; return in words what cannot be removed."""
        try:
            with self._folder(*PurePath(name).parts[:-1], writable=True) as folder, _errors():
                return remove_below(folder, PurePath(name).name)
        except FileNotFoundError:
            return None
        except NotAFileError as error:
            return str(error)

    @contextmanager
    def _folder(self, *parts: str, writable: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder that was reached without following a link."""
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
    """Let this user list and change a folder, given by its descriptor, as a program may have removed that right."""
    if os.fstat(descriptor).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        with _errors():
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IRWXU)


def safe_text(name: str | PurePath, most: int = LONGEST_SHOWN) -> str:
    """Return a name as text that is safe to print: at most `most` characters, without cursor movements and line ends.

    It is quoted if it could be taken for our own words.
    """
    text = one_line(str(name))
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    if PLAIN.fullmatch(text):
        return text
    mark = '"' if "'" in text and '"' not in text else "'"
    escaped = text.replace(mark, f"\\{mark}")
    return f"{mark}{escaped}{mark}"


def _open_file(folder: int, name: str, most: int) -> tuple[int, os.stat_result]:
    """Return the descriptor and the status of a regular file in an open folder."""
    named = os.open(name, NAME_ONLY, dir_fd=folder)
    try:
        status = os.fstat(named)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFileError(f"is {_kind(status)}")
        if status.st_size > most:
            raise NotAFileError(f"has {status.st_size} bytes, more than {most}")
        # This opens the file that was just checked, even if another one has its name by now.
        return os.open(f"/proc/self/fd/{named}", READING), status
    finally:
        os.close(named)


def _folder_of(descriptor: int, name: str) -> int:
    """Return the descriptor if it is a folder's; otherwise close it and raise NotAFileError."""
    status = os.fstat(descriptor)
    if not stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{safe_text(name)} is {_kind(status)}, not a folder".strip())
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
    if not levels or len(above) > LONGEST_NAME:
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
    """Turn errors of opening and reading into the two that callers expect."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotAFileError(f"cannot be read: {error.strerror or error}") from None
    except ValueError:
        # The name has a null character, or half of a surrogate pair.
        raise NotAFileError("cannot be read: no file can have that name") from None
