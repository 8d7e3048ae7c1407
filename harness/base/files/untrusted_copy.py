"""Copies files out of a folder to which an untrusted program writes."""

import errno
import hashlib
import os
from pathlib import Path, PurePath

from harness.base.files.hashes import file_hash
from harness.base.files.storage import create
from harness.base.files.untrusted_file import PIECE, NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree

# Largest holes of a file that is copied, in bytes: the copy may take that much more of the disk, and limits on a
# program's disk space do not see holes. Compression by the file system makes weights only a little smaller.
MOST_HOLE_BYTES = 256 << 20


def copy_out(tree: UntrustedTree, name: str | PurePath, to: Path, most: int, most_holes: int = MOST_HOLE_BYTES) -> str:
    """Copy a file of at most `most` bytes to a new file outside, with its holes; return its SHA-256.

    The copy is read again to verify it.

    Raises:
        FileNotFoundError, NotAFileError: as by UntrustedTree; also when the file has more than `most_holes` bytes of
            holes.
        OSError: when `to` exists or cannot be written, or reads back differently; nothing is left there.
    """
    digest, size = hashlib.sha256(), 0
    with tree.open(name, most) as file:
        if file.holes > most_holes:
            raise NotAFileError(f"has {file.size} bytes, of which {file.holes} are holes")
        with create(to) as copy:
            try:
                for offset, part in file.data(most):
                    _add_zeros(digest, offset - size)
                    digest.update(part)
                    copy.seek(offset)
                    copy.write(part)
                    size = offset + len(part)
                # The file may end with a hole.
                _add_zeros(digest, file.size - size)
                copy.truncate(max(size, file.size))
                copy.flush()
                os.fsync(copy.fileno())
                if to.stat().st_size != max(size, file.size) or file_hash(to) != digest.hexdigest():
                    raise OSError(errno.EIO, "does not hold what was written")
            except BaseException:
                to.unlink(missing_ok=True)
                raise
    return digest.hexdigest()


def _add_zeros(digest: "hashlib._Hash", count: int) -> None:
    for begin in range(0, count, PIECE):
        digest.update(bytes(min(PIECE, count - begin)))
