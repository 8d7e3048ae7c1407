"""Where things of this checkout are. The harness runs from a checkout."""

import os
from pathlib import Path

# Set by `matrix rehearse` for its own processes: a folder with locks and caches of their own. What runs there is no
# evidence, and touches nothing that a real build or run would take.
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
    """Return the folder of what this user's harnesses keep between commands, on whatever results folder.

    Raises:
        RuntimeError: where the user has no home.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rocm-matrix"
