"""The temporary folder of a run: not in the run folder, and with a name that every user of the host can know."""

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.tree_removal import empty, opened_folder
from harness.base.files.untrusted_tree import UntrustedTree

# Longest path of the folder, in characters. Loader workers put sockets under TMPDIR, and the path of a socket has at
# most 107. A longer TMPDIR does not fail: the training waits for its first batch for ever.
LONGEST = 64
# Most places that are passed over because other users have taken them.
MOST_TAKEN = 50


def temporary_folder_of(run: Path) -> Path:
    """Return the place of the temporary folder for the run in the folder `run`.

    A place that another user has taken is passed over. Otherwise that user could keep every run from starting, because
    in a folder for all users nobody else may remove it.
    """
    digest = hashlib.sha256(str(run.absolute()).encode()).hexdigest()
    names = [f"matrix-{digest[begin : begin + 12]}" for begin in range(MOST_TAKEN)]
    usual = Path(tempfile.gettempdir())
    folder = usual if len(str(usual / names[0])) <= LONGEST else Path("/tmp")  # noqa: S108
    users = {_owner(run), os.geteuid(), None}
    return next((folder / name for name in names if _owner(folder / name) in users), folder / names[0])


def _owner(place: Path) -> int | None:
    """Return the user to whom a file or folder belongs; None where there is none."""
    try:
        return place.lstat().st_uid
    except OSError:
        return None


def make_temporary_folder(place: Path) -> None:
    """Make the temporary folder, empty.

    Raises:
        UserError: when another user's files are there.
    """
    # A run folder is new, so what is in this place was left by a crash, or by an earlier part of the run. A folder of
    # this user is emptied and not replaced, because another user may wait for it to disappear, and take its name.
    if _emptied(place):
        return
    remove_place(place)
    try:
        place.mkdir(mode=0o700)
    except OSError as error:
        fix = "remove what is there, or set TMPDIR to a folder of your own"
        raise UserError(f"{place}: cannot be made: {error.strerror}; {fix}") from None


@contextmanager
def folder_removed_after(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new folder in `parent`, which may not exist yet, and remove it at the end, whatever a program made in it.

    `TemporaryDirectory` recurses for each level that is nested there, and fails. The name ends like that of an
    unfinished file, so that recovery removes what is left.
    """
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=prefix, suffix=".tmp", dir=parent))
    try:
        yield place
    finally:
        remove_place(place)


def remove_place(place: Path) -> str | None:
    """Remove a file or folder, without following links in it; return in words what cannot be removed."""
    why = UntrustedTree(place.parent.resolve()).remove(place.name)
    return f"{place} {why}" if why else None


def _emptied(place: Path) -> bool:
    """Empty the folder; return whether it exists, belongs to this user and is empty now."""
    try:
        found = place.lstat()
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            return False
        place.chmod(0o700)
        with opened_folder(place) as opened:
            empty(opened)
    except OSError:
        return False
    return True
