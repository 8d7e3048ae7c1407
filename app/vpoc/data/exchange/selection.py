"""Selects the sessions that give rows, counts why the others do not, and checks that enough remain."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.exchange.sessions import Sessions
from vpoc.errors import UserError

LOOK_BACK = 5
"""Farthest session that a single feature or target looks back to; all sessions up to it must be there."""
HISTORY = 20
"""Number of sessions that means are taken over."""
SHORTEST_LOOKBACK = HISTORY
FEWEST = {"bar": 3, "session": 4}
"""Sessions needed to train, by kind of row: two to train and one to validate; the last session row has no label."""


@dataclass(frozen=True)
class Selection:
    """`sessions`: indices of those that give rows.

    `left_out`: the number of the others by the first applicable reason.
    """

    sessions: Ints
    left_out: dict[str, int]


def chain(sessions: Sessions, rolls: Ints) -> Ints:
    """Return how many complete sessions are right before each [sessions], without a missing session or roll in between.

    `rolls` [sessions]: the number of rolls before each.
    """
    unbroken = np.zeros(len(sessions), dtype=np.bool_)
    unbroken[1:] = sessions.complete[:-1] & (np.diff(sessions.number) == 1) & (np.diff(rolls) == 0)
    place = np.arange(len(sessions))
    return place - np.maximum.accumulate(np.where(unbroken, 0, place))


def select_sessions(
    sessions: Sessions, rolls: Ints, vix_close: Floats, *, rows: str, lookback: int, next_open: bool = False
) -> Selection:
    """Select the sessions, among `sessions` with RTH bars, that give rows.

    `next_open`: session rows as of the next open.

    `vix_close` [sessions], NaN where unknown: means need it for 20 sessions.
    """
    giving = sessions.complete.copy()
    if rows == "bar":
        giving[-1:] |= sessions.in_progress & ~sessions.mixed[-1:]
    before: Ints = np.cumsum(sessions.complete) - sessions.complete
    full = sessions.complete & (sessions.close == sessions.close.max(initial=0))
    adjacent = np.zeros(len(sessions), dtype=np.bool_)
    adjacent[:-1] = (np.diff(sessions.number) == 1) & (np.diff(rolls) == 0)
    links = chain(sessions, rolls)
    unrolled = chain(sessions, np.zeros_like(rolls))
    reasons = {
        "incomplete": ~giving,
        "lookback": before < lookback,
        "after_gap": unrolled < LOOK_BACK,
        "after_roll": links < LOOK_BACK,
        "short_history": np.cumsum(full) - full < HISTORY,
        "without_vix": some_unknown(sessions.complete, np.isnan(vix_close), through=rows == "session"),
    }
    if next_open:
        reasons["without_next_open"] = ~adjacent
    left = np.ones(len(sessions), dtype=np.bool_)
    left_out = {}
    for reason, holds in reasons.items():
        left_out[reason] = int((left & holds).sum())
        left &= ~holds
    return Selection(np.flatnonzero(left), left_out)


def longest_lookback(sessions: Sessions, most: Selection, fewest: int) -> int | None:
    """Return the longest lookback with which `fewest` sessions give rows; None if that many never do.

    `most`: the sessions that give rows with the shortest lookback.
    """
    if len(most.sessions) < fewest:
        return None
    # All complete sessions before the first one of the fewest that must give rows.
    return int(sessions.complete[: most.sessions[-fewest]].sum())


def require_enough(
    path: Path,
    sessions: Sessions,
    found: Selection,
    lookback: int,
    fewest: int,
    longest: int | None,
    shortest: int = SHORTEST_LOOKBACK,
) -> None:
    """Raise UserError when fewer than `fewest` sessions give rows.

    `longest`, `shortest`: between what lookbacks there are enough; None if there never are.
    """
    if len(found.sessions) >= fewest:
        return
    complete = int(sessions.complete.sum())
    advice = f", or a --lookback of {shortest} to {longest}" if longest is not None else ""
    if complete < lookback + fewest:
        raise UserError(
            f"{path}: {lookback + fewest} complete sessions are needed ({lookback} for lookback, {fewest} to use), "
            f"the file has {complete}; give more data, such as the months before, in one file "
            f"(`tail -n +2 newer.csv >> older.csv`){advice}"
        )
    shown = ", ".join(
        f"{count} {reason.replace('_', ' ')}"
        for reason, count in found.left_out.items()
        if count and reason not in {"incomplete", "lookback"}
    )
    raise UserError(
        f"{path}: of the sessions after the lookback, {len(found.sessions)} give rows and {fewest} must; left out are "
        f"{shown}; give data without gaps, or more of it{advice}"
    )


def some_unknown(complete: Flags, unknown: Flags, *, through: bool) -> Flags:
    """Which sessions have an `unknown` one among the last 20 complete ones before them, or with them (`through`)."""
    among = np.concatenate([[0], np.cumsum(unknown[complete])])
    stop = np.cumsum(complete) - (0 if through else complete)
    some: Flags = among[stop] > among[np.maximum(stop - HISTORY, 0)]
    return some
