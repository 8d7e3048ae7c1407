"""Removes a folder and its content, by descriptors, without following links, and at any depth.

`shutil.rmtree` recurses for each level, and for a path of thousands of levels not every level can have a descriptor.
"""

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Linux's requests for the flags of a file, and the flags of `chattr +i` and `+a`: not even root can change such a file.
GET_FLAGS, SET_FLAGS, FIXED = 0x80086601, 0x40086602, 0x10 | 0x20
# Longest removal, in seconds: that of a few hundred thousand files.
LONGEST_SECONDS = 60.0


def remove_below(parent: int, name: str) -> str | None:
    """Remove a name in a folder, given by its descriptor; return why something cannot be removed, or None.

    Inner folders are first moved up into the outermost one and then emptied, so that only two are open at a time.
    """
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return None
        top = _open_folder(parent, name)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    try:
        empty(top)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be removed: {error.strerror or error}"
    finally:
        os.close(top)
    return None


def empty(folder: int) -> None:
    """Remove everything in a folder, given by its descriptor.

    Raises:
        OSError: when something cannot be removed; as a TimeoutError, when the removal takes too long.
    """
    until = time.monotonic() + LONGEST_SECONDS
    while names := _some_names(folder):
        for inner in names:
            # A process that is still running there may remove files, too.
            with suppress(FileNotFoundError):
                _empty_out(folder, inner, until)


def _empty_out(top: int, name: str, until: float) -> None:
    """Remove a name in the outermost folder `top`, and move inner folders up into `top`."""
    if time.monotonic() > until:
        raise TimeoutError(f"holds more than can be removed in {LONGEST_SECONDS:.0f} s")
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return
    folder = _open_folder(top, name)
    try:
        while names := _some_names(folder):
            for inner in names:
                if time.monotonic() > until:
                    raise TimeoutError(f"holds more than can be removed in {LONGEST_SECONDS:.0f} s")
                if stat.S_ISDIR(os.stat(inner, dir_fd=folder, follow_symlinks=False).st_mode):
                    # Opened first, because only a user who may write to a folder can move it.
                    os.close(_open_folder(folder, inner))
                    os.rename(inner, token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(inner, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


@contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a folder, whose path must not end in a link; raises OSError if it is not a folder."""
    descriptor = os.open(folder, FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def clear_immutable_flags(folder: Path) -> bool:
    """Remove from a folder, its parent and its entries the flags that make them immutable (`chattr`).

    Return whether there were any: a program that runs as root may have set them.
    """
    found = False
    with suppress(OSError), opened_folder(folder) as opened:
        for name in (".", "..", *_some_names(opened)):
            with suppress(OSError):
                one = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
                try:
                    flags = int.from_bytes(fcntl.ioctl(one, GET_FLAGS, bytes(8)), sys.byteorder)
                    if flags & FIXED:
                        fcntl.ioctl(one, SET_FLAGS, (flags & ~FIXED).to_bytes(8, sys.byteorder))
                        found = True
                finally:
                    os.close(one)
    return found


def _open_folder(parent: int, name: str) -> int:
    """Open a folder, to which a program may have removed all access."""
    try:
        named = os.open(name, NAME_ONLY, dir_fd=parent)
        try:
            mode = os.fstat(named).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{named}", stat.S_IRWXU)  # noqa: PTH101
        finally:
            os.close(named)
    except PermissionError:
        # The folder is another user's, which the next call reports.
        pass
    return os.open(name, FOLDER, dir_fd=parent)


def _some_names(folder: int) -> list[str]:
    """Return some of the names in a folder, so that a list of a million names is never in memory."""
    with os.scandir(folder) as entries:
        return [entry.name for _, entry in zip(range(1000), entries, strict=False)]
