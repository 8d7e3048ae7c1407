"""A private temporary folder for what ranks share, in memory if possible."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vpoc.errors import from_os_error

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
PREFIX = "vpoc-ranks-"
YOUNG_S = 60.0
"""Seconds; creating a folder and locking it takes less."""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Yield a new folder for this user alone, and remove it at the end; first remove those that killed processes left.

    Raises:
        UserError: when there is no place for it.
    """
    place = _place()
    _remove_leftovers(place)
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    except OSError as error:
        raise from_os_error(error, place) from error
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _place() -> Path:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        # Ignore what is no folder, and folders that another process has removed meanwhile.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                found = os.fstat(lock)
                # Another user's folder may be too deep or too full to be removed.
                if found.st_uid != os.geteuid() or time.time() - found.st_mtime < YOUNG_S:
                    continue
                # The kernel released the lock when the process that created the folder ended in any way.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
