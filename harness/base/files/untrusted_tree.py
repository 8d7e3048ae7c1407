"""The one way into a folder to which an untrusted program writes: reads and removes its files.

Every name is opened relative to the descriptor of the folder above it, and no link is followed at any level. Only
regular files are opened for reading, so nothing blocks and no device is touched, and no more is read than the caller's
limit.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from harness.base.files.tree_removal import remove_below
from harness.base.files.untrusted_file import (
    FILE_KINDS,
    NAME_ONLY,
    PIECE,
    NotAFileError,
    OpenFile,
    file_kind,
    open_file,
    reading_errors,
)
from harness.base.text import safe_text

# Size limit for files that are read in pieces.
ANY_SIZE = 1 << 63
# Most names in one folder; the app makes a few dozen.
MOST_NAMES = 10_000
# Most nested folders: a run that makes more is ended.
MOST_LEVELS = 128
# Longest name of a file below a folder, in characters: a hundred thousand longer ones would fill the memory.
LONGEST_NAME = 4096


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
        return self.kind == FILE_KINDS[stat.S_IFREG]

    @property
    def is_folder(self) -> bool:
        """True if it is a folder."""
        return self.kind == FILE_KINDS[stat.S_IFDIR]


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
        with self._folder(*PurePath(name).parts[:-1]) as folder, reading_errors():
            descriptor, status = open_file(folder, PurePath(name).name, most)
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
        with self._folder(*PurePath(folder).parts) as parent, reading_errors():
            found = []
            for name in _names(parent):
                try:
                    found.append(_entry(name, os.stat(name, dir_fd=parent, follow_symlinks=False)))
                except FileNotFoundError:
                    continue
            return found

    def names(self, folder: str | PurePath = "") -> list[str]:
        """Return the names in a folder, in no particular order, unexamined: this is called ten times a second."""
        with self._folder(*PurePath(folder).parts) as parent, reading_errors():
            return list(_names(parent))

    def some_names(self) -> list[str]:
        """Return the names in the folder, in no particular order, but no more than MOST_NAMES."""
        with self._folder() as parent, reading_errors():
            return list(islice(_names(parent), MOST_NAMES))

    def files(self, folder: str | PurePath = "") -> Iterator[Entry]:
        """Yield the files below a folder, by their names in it, in no particular order; each folder is opened once.

        Raises:
            NotAFileError: also when one has more than MOST_NAMES entries, or they are nested more than MOST_LEVELS
                deep, or a name is longer than LONGEST_NAME.
        """
        with self._folder(*PurePath(folder).parts) as parent, reading_errors():
            yield from _files_below(parent, "", MOST_LEVELS)

    def look(self, name: str | PurePath) -> Entry:
        """Return the entry of a name."""
        with self._folder(*PurePath(name).parts[:-1]) as folder, reading_errors():
            inner = PurePath(name).name
            return _entry(inner, os.stat(inner, dir_fd=folder, follow_symlinks=False))

    def remove(self, name: str | PurePath) -> str | None:
        """Remove a file, or a folder with everything in it at any depth; return in words what cannot be removed."""
        try:
            with self._folder(*PurePath(name).parts[:-1], writable=True) as folder, reading_errors():
                return remove_below(folder, PurePath(name).name)
        except FileNotFoundError:
            return None
        except NotAFileError as error:
            return str(error)

    def move_out(self, name: str | PurePath, place: Path) -> None:
        """Move a file or a folder to a place on the same disk, to which only this user writes."""
        with self._folder(*PurePath(name).parts[:-1], writable=True) as folder, reading_errors():
            os.rename(PurePath(name).name, place, src_dir_fd=folder)

    @contextmanager
    def _folder(self, *parts: str, writable: bool = False) -> Iterator[int]:
        """Yield the descriptor of a folder that was reached without following a link."""
        if any(part in ("..", "/") for part in parts):
            raise NotAFileError("leads out of the folder")
        with reading_errors():
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
        with reading_errors():
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IRWXU)


def _folder_of(descriptor: int, name: str) -> int:
    """Return the descriptor if it is a folder's; otherwise close it and raise NotAFileError."""
    status = os.fstat(descriptor)
    if not stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise NotAFileError(f"{safe_text(name)} is {file_kind(status)}, not a folder".strip())
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
    return Entry(name, file_kind(status), status.st_size, (status.st_dev, status.st_ino), status.st_ctime)
