"""Lock files in a place where all users of a host find them."""

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.base.errors import UserError

# The first of these that every user may write to is used, so that all users find the same one.
PLACES = ("run/lock", "tmp")


def folder_of_locks(root: Path) -> Path:
    """Return the folder of this host for lock files that every user may take.

    Raises:
        UserError: when there is no folder that every user may write to.
    """
    for place in PLACES:
        folder = root / place
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder
    raise UserError(f"no folder for the locks of this host: make {root / PLACES[-1]} writable for every user")


def open_shared_lock(file: Path) -> int:
    """Open a lock file, which another user may have made; return its descriptor.

    O_CREAT is not used on an existing file: in a folder for all users, the kernel may refuse that for another user's
    file.

    Raises:
        UserError: when the file cannot be opened, or is not a regular file.
    """
    try:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            with suppress(FileExistsError):
                return _make(file)
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{file}: the lock cannot be opened: {error.strerror}; remove that file") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        # Any user can make something else of this name.
        os.close(descriptor)
        raise UserError(f"{file}: the lock is not a file; remove it")
    return descriptor


def is_at(descriptor: int, file: Path) -> bool:
    """Return whether an open file is still the one with this name."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    return False


def lock_at_once(descriptor: int, file: Path) -> bool:
    """Lock an open file. Return False if another process has locked it, or if it was removed meanwhile.

    A removed lock file excludes no one, because the next process makes another one.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return is_at(descriptor, file)


def _make(file: Path) -> int:
    """Make a lock file that every user may open from the first moment, whatever the umask."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        os.fchmod(descriptor, 0o666)
        os.link(name, file)
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        Path(name).unlink(missing_ok=True)
    return descriptor
