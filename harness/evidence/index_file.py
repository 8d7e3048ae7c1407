"""The place of the index of a results folder: with the state of this user on this host, never in the results folder.

Several hosts may share a results folder over a network, where SQLite's locks do not work.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from harness.base.files.storage import read_regular, unfinished
from harness.base.paths import state_folder
from harness.base.sysfs import REAL_ROOT
from harness.evidence.files.temporary_folder import MOST_TAKEN
from harness.host.fingerprint import machine_of

NAME = "records.db"
# A file beside the index that names its results folder.
OWNER = "results-folder"
OWNER_ALONE = 0o700


def index_file(results: Path) -> Path:
    """Return the place of the index of a results folder; the folder for it is made if possible.

    Each host has an index of its own, because hosts often share a home, too.
    """
    results = results.absolute()
    name = hashlib.sha256(os.fsencode(results)).hexdigest()[:16]
    for place in _places():
        folder = place / f"{name}.{_machine()}"
        try:
            place.mkdir(parents=True, exist_ok=True, mode=OWNER_ALONE)
            # In a folder of other users they could replace the file, or have put a link in place of what is written.
            if place.lstat().st_uid != os.geteuid():
                continue
            if not (folder / OWNER).exists():
                _remove_abandoned(place)
                folder.mkdir(exist_ok=True, mode=OWNER_ALONE)
                (folder / OWNER).write_bytes(os.fsencode(results))
        except OSError:
            continue
        if os.access(folder, os.W_OK) and folder.lstat().st_uid == os.geteuid():
            return folder / NAME
    # A name that nobody can take beforehand.
    return unfinished(place) / NAME


def _places() -> Iterator[Path]:
    with suppress(RuntimeError):
        yield state_folder() / "index"
    for number in range(MOST_TAKEN):
        yield Path(tempfile.gettempdir()) / f"rocm-matrix-{os.geteuid()}{f'-{number}' if number else ''}"


def _remove_abandoned(place: Path) -> None:
    """Remove the indexes of results folders that are gone; that of an unmounted folder is simply rebuilt later."""
    for owner in place.glob(f"*/{OWNER}"):
        with suppress(OSError):
            if not Path(os.fsdecode(read_regular(owner))).exists():
                shutil.rmtree(owner.parent)


@cache
def _machine() -> str:
    return machine_of(REAL_ROOT)
