"""The place of the index of a results folder: with the state of this user on this host, never in the results folder.

Several hosts may share a results folder over a network, where SQLite's locks do not work.
"""

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from harness.base.files.storage import read_regular
from harness.base.paths import state_folder
from harness.base.sysfs import REAL_ROOT
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
            if not (folder / OWNER).exists():
                _remove_abandoned(place)
                folder.mkdir(parents=True, exist_ok=True, mode=OWNER_ALONE)
                (folder / OWNER).write_bytes(os.fsencode(results))
        except OSError:
            continue
        # In a folder of other users they could replace the file.
        if os.access(folder, os.W_OK) and {one.lstat().st_uid for one in (place, folder)} == {os.geteuid()}:
            return folder / NAME
    return _places()[-1] / name / NAME


def _places() -> list[Path]:
    places = [Path(tempfile.gettempdir()) / f"rocm-matrix-{os.geteuid()}"]
    with suppress(RuntimeError):
        places.insert(0, state_folder() / "index")
    return places


def _remove_abandoned(place: Path) -> None:
    """Remove the indexes of results folders that are gone; that of an unmounted folder is simply rebuilt later."""
    for owner in place.glob(f"*/{OWNER}"):
        with suppress(OSError):
            if not Path(os.fsdecode(read_regular(owner))).exists():
                shutil.rmtree(owner.parent)


@cache
def _machine() -> str:
    return machine_of(REAL_ROOT)
