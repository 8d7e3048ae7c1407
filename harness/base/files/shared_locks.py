"""Lock files that all users of a host find, in the same place."""

import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.base.errors import UserError

# The first that every user may write to; all users have to find the same one.
PLACES = ("run/lock", "tmp")


def folder_of_locks(root: Path = Path("/")) -> Path:
    """Return the folder of this host for lock files that every user may take.

    Raises:
        UserError: when no folder is there that every user may write to.
    """
    for place in PLACES:
        folder = root / place
        if folder.is_dir() and folder.stat().st_mode & stat.S_IWOTH:
            return folder
    raise UserError(f"no folder for the locks of this host: make {root / PLACES[-1]} one that every user may write to")


def open_shared_lock(file: Path) -> int:
    """Open a lock file that perhaps another user made; returns its descriptor.

    Without O_CREAT where it is there: in a folder for everybody the kernel may refuse that for another's file.

    Raises:
        UserError: when it cannot be opened, or is no file.
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
        # Anybody may make one there.
        os.close(descriptor)
        raise UserError(f"{file}: the lock is no file; remove it")
    return descriptor


def is_at(descriptor: int, file: Path) -> bool:
    """Return whether a file that was opened is still the one of that name."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    return False


def lock_at_once(descriptor: int, file: Path) -> bool:
    """Lock a file that was opened; False where another process has it locked, or it was removed meanwhile.

    One that was removed keeps nobody out: whoever comes next makes another.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return is_at(descriptor, file)


def _make(file: Path) -> int:
    """Make a lock file that everybody may open, from its first moment on and whatever the umask."""
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
