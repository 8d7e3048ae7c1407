"""Removes the set-user-id and set-group-id bits of a program's files, with which a process acts as their owner."""

import os
import stat

from harness.base.files.untrusted_file import NAME_ONLY

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SET_ID = stat.S_ISUID | stat.S_ISGID
# Most nested folders: a run that makes more is ended.
MOST_LEVELS = 128


def remove_set_id(folder: int) -> None:
    """Remove these bits from every file below an open folder in which nothing runs; no link is followed.

    If such a file has another name, which may be elsewhere, its name here is removed.

    Raises:
        OSError: when a part of the folder cannot be examined or changed, or is too deep.
    """
    _remove_below(os.open(".", FOLDER, dir_fd=folder), MOST_LEVELS)


def _remove_below(folder: int, levels: int) -> None:
    """Remove the bits below an open folder, and close it."""
    try:
        if not levels:
            raise OSError("its folders are too deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                mode = found.st_mode
                if stat.S_ISDIR(mode):
                    if mode & stat.S_IRWXU != stat.S_IRWXU:
                        # Otherwise a program could prevent the record of its failure by closing a folder to its owner.
                        change_mode(folder, entry.name, stat.S_IMODE(mode) | stat.S_IRWXU)
                    _remove_below(os.open(entry.name, FOLDER, dir_fd=folder), levels - 1)
                elif stat.S_ISREG(mode) and mode & SET_ID:
                    if found.st_nlink > 1 or found.st_uid != os.geteuid():
                        # Perhaps a program of this host, which must keep its bits.
                        os.unlink(entry.name, dir_fd=folder)
                    else:
                        change_mode(folder, entry.name, stat.S_IMODE(mode) & ~SET_ID)
    finally:
        os.close(folder)


def change_mode(folder: int, name: str, mode: int) -> None:
    """Change the mode of a file or folder in an open folder; raises OSError."""
    named = os.open(name, NAME_ONLY, dir_fd=folder)
    try:
        # Through a descriptor that only names the file, so that a link that took its place is not followed.
        os.chmod(f"/proc/self/fd/{named}", mode)  # noqa: PTH101
    finally:
        os.close(named)
