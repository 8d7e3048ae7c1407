"""Takes the set-user-id and set-group-id bits from what a program left: whoever runs such a file acts as its owner."""

import os
import stat

from harness.base.files.untrusted_tree import NAME_ONLY

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SET_ID = stat.S_ISUID | stat.S_ISGID
# A run that makes more is ended.
MOST_LEVELS = 128


def remove_set_id(folder: int) -> None:
    """Take these bits from every file below an open folder in which nothing runs; no link is followed.

    The name of such a file that has another one, perhaps elsewhere, is removed.

    Raises:
        OSError: when a part of it cannot be looked at or changed, or is too deep.
    """
    _remove_below(os.open(".", FOLDER, dir_fd=folder), MOST_LEVELS)


def _remove_below(folder: int, levels: int) -> None:
    """Do so in an open folder, and close it."""
    try:
        if not levels:
            raise OSError("its folders are too deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                mode = found.st_mode
                if stat.S_ISDIR(mode):
                    if mode & stat.S_IRWXU != stat.S_IRWXU:
                        # A program could keep others from the record of its failure by closing a folder to its owner.
                        change_mode(folder, entry.name, stat.S_IMODE(mode) | stat.S_IRWXU)
                    _remove_below(os.open(entry.name, FOLDER, dir_fd=folder), levels - 1)
                elif stat.S_ISREG(mode) and mode & SET_ID:
                    if found.st_nlink > 1 or found.st_uid != os.geteuid():
                        # Perhaps a program of this host: it keeps its bits where it is.
                        os.unlink(entry.name, dir_fd=folder)
                    else:
                        change_mode(folder, entry.name, stat.S_IMODE(mode) & ~SET_ID)
    finally:
        os.close(folder)


def change_mode(folder: int, name: str, mode: int) -> None:
    """Change the mode of a file or folder in an open folder; raises OSError."""
    named = os.open(name, NAME_ONLY, dir_fd=folder)
    try:
        # Of a descriptor that names a file only: a link that took its place is not followed.
        os.chmod(f"/proc/self/fd/{named}", mode)  # noqa: PTH101
    finally:
        os.close(named)
