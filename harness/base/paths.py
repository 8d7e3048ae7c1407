"""The places of this checkout. The harness runs from a checkout."""

import os
from pathlib import Path

# Set by `matrix rehearse` for its own processes: a folder with locks and caches of their own. Runs there are no
# evidence, and touch nothing that a real build or run would use.
REHEARSAL_VARIABLE = "MATRIX_REHEARSAL"
REHEARSAL = Path(os.environ[REHEARSAL_VARIABLE]) if os.environ.get(REHEARSAL_VARIABLE) else None

CHECKOUT = Path(__file__).resolve().parents[2]
APP = CHECKOUT / "app"
IMAGES = CHECKOUT / "images"
LOCKS = (REHEARSAL or IMAGES) / "locks"
CACHE = REHEARSAL / "cache" if REHEARSAL else CHECKOUT / ".cache"
ENVIRONMENTS = CACHE / "envs"
APPS = CACHE / "apps"
DATA = CACHE / "data"
WHEELS = CACHE / "wheels"
BUILDS = CACHE / "builds"


def state_folder() -> Path:
    """Return the folder in which this user's harnesses keep state between commands, for all results folders.

    Raises:
        RuntimeError: when the user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rocm-matrix"
