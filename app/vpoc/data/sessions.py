"""Trading sessions: which bars belong to which trade date, and which are regular trading hours (RTH)."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from vpoc.data.bars import Bars, Flags, Ints
from vpoc.errors import UserError

ZONE = "America/New_York"
RTH_OPEN = 9 * 60 + 30
RTH_CLOSE = 16 * 60
RTH_MINUTES = RTH_CLOSE - RTH_OPEN
COMPLETE_SHARE = 0.95
LONGEST_GAP_DAYS = 5
"""Calendar days between neighbouring sessions; no weekend and holidays together are longer."""


@dataclass(frozen=True)
class Sessions:
    """Sessions in order of trade date; every array is [sessions].

    `date`: days since 1970-01-01. `start`, `stop`: the RTH bars are rows start..stop-1 of the Bars.
    `complete`: RTH is over and at least 95 % of its expected bars are there. `expected`: RTH bars of a full session.
    `follows`: how many complete sessions stand before this one with nothing missing in between, that is with no
    incomplete session that has RTH bars and no more than 5 calendar days from one to the next.
    `in_progress`: the file ends with a bar of the last session's RTH that ends before the close.
    """

    date: Ints
    start: Ints
    stop: Ints
    complete: Flags
    follows: Ints
    expected: int
    in_progress: bool

    def __len__(self) -> int:
        return len(self.date)

    def take(self, keep: Flags | slice) -> "Sessions":
        """The sessions selected by `keep`; `in_progress` is true only while the last one is kept."""
        last = np.zeros(len(self), dtype=np.bool_)
        last[-1:] = True
        in_progress = self.in_progress and bool(last[keep].any())
        names = ("date", "start", "stop", "complete", "follows")
        return replace(self, in_progress=in_progress, **{name: getattr(self, name)[keep] for name in names})


def split_sessions(bars: Bars) -> Sessions:
    """Sessions of `bars`: trade date = date(New York time + 6 h), RTH = [09:30, 16:00) New York.

    UserError when the bar interval does not divide 30 minutes, or a bar of RTH does not start a whole number of
    intervals after 09:30, because the open or the close would cut through bars.
    """
    if 1800 % bars.bar_seconds:
        raise UserError(
            f"{bars.path}: bars are {bars.bar_seconds} seconds apart; "
            "give bars of 30 minutes or a whole part of it (1 minute is best)"
        )
    date, minute = new_york(bars.ts)
    dates, first = np.unique(date, return_index=True)
    rth = (minute >= RTH_OPEN) & (minute < RTH_CLOSE)
    since_open = (minute - RTH_OPEN) * 60 + bars.ts % 60
    _require_grid(bars, rth & (since_open % bars.bar_seconds != 0))
    count = np.add.reduceat(rth.astype(np.int64), first)
    before = np.concatenate([[0], np.cumsum(rth)])
    # RTH bars follow each other in a sorted file, so the first one and their number say where they are.
    positions = np.concatenate([np.flatnonzero(rth), [len(bars)]])
    start = positions[before[first]]
    expected = RTH_MINUTES * 60 // bars.bar_seconds
    complete = (count >= COMPLETE_SHARE * expected) & (count <= expected)
    in_progress = bool(rth[-1]) and int(since_open[-1]) + bars.bar_seconds < RTH_MINUTES * 60
    complete[-1] &= not in_progress
    return Sessions(
        date=dates,
        start=start,
        stop=start + count,
        complete=complete,
        follows=_follows(dates, count > 0, complete),
        expected=expected,
        in_progress=in_progress,
    )


def _follows(date: Ints, traded: Flags, complete: Flags) -> Ints:
    """The column `follows` of Sessions; `traded`: which sessions have RTH bars. 0 for those without."""
    found = np.flatnonzero(traded)
    unbroken = np.zeros(len(found), dtype=np.bool_)
    unbroken[1:] = complete[found[:-1]] & (np.diff(date[found]) <= LONGEST_GAP_DAYS)
    place = np.arange(len(found))
    follows = np.zeros(len(date), dtype=np.int64)
    follows[found] = place - np.maximum.accumulate(np.where(unbroken, 0, place))
    return follows


def _require_grid(bars: Bars, astray: Flags) -> None:
    if astray.any():
        stamp = np.datetime64(int(bars.ts[np.argmax(astray)]), "s")
        raise UserError(
            f"{bars.path}: the bar of {stamp}Z does not start a whole number of bars of {bars.bar_seconds} seconds "
            f"after 09:30 New York ({int(astray.sum())} such bars); give bars of one interval, stamped with their start"
        )


def new_york(ts: Ints) -> tuple[Ints, Ints]:
    """Trade date (days since 1970-01-01) and minute of the New York day, both [rows], of stamps in UTC seconds."""
    stamps = pl.Series(ts * 1_000_000).cast(pl.Datetime("us", "UTC"))
    local = stamps.dt.convert_time_zone(ZONE).dt.replace_time_zone(None)
    date = local.dt.offset_by("6h").dt.date().cast(pl.Int64).to_numpy()
    minute = (local.dt.hour().cast(pl.Int64) * 60 + local.dt.minute().cast(pl.Int64)).to_numpy()
    return date, minute
