"""Reads a regular file that an untrusted program may change meanwhile."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

PIECE = 1 << 20
# Unit of `st_blocks`, in bytes.
BLOCK = 512
# A folder or file is first opened by its name only, which has no effect on it.
NAME_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
FILE_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}
GREW = "grew beyond {most} bytes while it was read"


class NotAFileError(Exception):
    """Raised for a file that cannot be read as one; the text says what it is instead."""


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
        with reading_errors():
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
        with reading_errors():
            return os.pread(self._descriptor, min(most, PIECE), offset)


def open_file(folder: int, name: str, most: int) -> tuple[int, os.stat_result]:
    """Return the descriptor and the status of a regular file in an open folder."""
    named = os.open(name, NAME_ONLY, dir_fd=folder)
    try:
        status = os.fstat(named)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFileError(f"is {file_kind(status)}")
        if status.st_size > most:
            raise NotAFileError(f"has {status.st_size} bytes, more than {most}")
        # This opens the file that was just checked, even if another one has its name by now.
        return os.open(f"/proc/self/fd/{named}", READING), status
    finally:
        os.close(named)


def file_kind(status: os.stat_result) -> str:
    """Return what a file, folder or link is, in words."""
    return FILE_KINDS.get(stat.S_IFMT(status.st_mode), "of an unknown kind")


@contextmanager
def reading_errors() -> Iterator[None]:
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
