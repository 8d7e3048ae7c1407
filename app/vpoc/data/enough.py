"""Which sessions give rows, and whether there are enough of them."""

from pathlib import Path

import numpy as np

from vpoc.data.bars import Ints
from vpoc.data.sessions import Sessions
from vpoc.errors import UserError

LOOK_BACK = 5
"""The farthest single session that a feature or target looks back to; all of them must be there."""
SHORTEST_WARM_UP = 20
"""atr20 of bar rows needs this many sessions before the first row."""
FEWEST = {"bar": 3, "session": 4}
"""Sessions needed to train, by kind of row: two to train and one to validate; the last session row has no label."""


def usable_sessions(found: Sessions, rows: str) -> Sessions:
    """The complete sessions, and for bar rows also the one still in progress."""
    usable = found.complete.copy()
    if rows == "bar":
        usable[-1:] |= found.in_progress
    return found.take(usable)


def after_gap(usable: Sessions, warm_up: int) -> int:
    """How many sessions after the warm-up give no rows because one of the 5 before them is missing."""
    return int((usable.follows[warm_up:] < LOOK_BACK).sum())


def sessions_with_rows(path: Path, usable: Sessions, warm_up: int, fewest: int) -> Ints:
    """Indices of the sessions after the warm-up that follow 5 others without a gap; UserError under `fewest`."""
    late = np.arange(len(usable)) >= warm_up
    found = np.flatnonzero(late & (usable.follows >= LOOK_BACK))
    if len(found) >= fewest:
        return found
    if late.sum() >= fewest:
        raise UserError(
            f"{path}: of the {int(late.sum())} complete sessions after the warm-up, {len(found)} follow {LOOK_BACK} "
            f"others without a gap, and {fewest} such are needed; give data without gaps, or more of it"
        )
    raise UserError(
        f"{path}: {warm_up + fewest} complete sessions are needed ({warm_up} to warm up, {fewest} to use), "
        f"the file has {len(usable)}; give more data or a smaller --warm-up (at least {SHORTEST_WARM_UP})"
    )
