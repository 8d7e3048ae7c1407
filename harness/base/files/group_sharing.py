"""Gives the files of a run to the group that shares a results folder, because users have different umasks."""

import os
import stat

from harness.base.files.set_id import change_mode

OF_FILES = stat.S_IRGRP | stat.S_IWGRP
OF_FOLDERS = OF_FILES | stat.S_IXGRP


def share_below(folder: int) -> None:
    """Let the group read and write all files of this user below an open folder in which nothing runs.

    No link is followed, and a file with another name, which may be elsewhere, is not changed.

    Raises:
        OSError: when a part of the folder cannot be examined or changed.
    """
    for _, folders, files, here in os.fwalk(".", onerror=_refuse, dir_fd=folder):
        for name in (*folders, *files):
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if found.st_uid != os.geteuid():
                continue
            if stat.S_ISDIR(found.st_mode):
                change_mode(here, name, stat.S_IMODE(found.st_mode) | OF_FOLDERS)
            elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                change_mode(here, name, stat.S_IMODE(found.st_mode) | OF_FILES)


def _refuse(error: OSError) -> None:
    """Raise an error that os.fwalk would ignore by default."""
    raise error
