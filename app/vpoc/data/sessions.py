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


@dataclass(frozen=True)
class Sessions:
    """Sessions in order of trade date; every array is [sessions].

    `date`: days since 1970-01-01. `start`, `stop`: the RTH bars are rows start..stop-1 of the Bars.
    `complete`: at least 95 % of the expected RTH bars are there. `expected`: RTH bars of a full session.
    `in_progress`: the last bar of the file lies inside the RTH of the last session, which is not complete yet.
    """

    date: Ints
    start: Ints
    stop: Ints
    complete: Flags
    expected: int
    in_progress: bool

    def __len__(self) -> int:
        return len(self.date)

    def take(self, keep: Flags | slice) -> "Sessions":
        """The sessions selected by `keep`; `in_progress` is true only while the last one is kept."""
        last = np.zeros(len(self), dtype=np.bool_)
        last[-1:] = True
        in_progress = self.in_progress and bool(last[keep].any())
        names = ("date", "start", "stop", "complete")
        return replace(self, in_progress=in_progress, **{name: getattr(self, name)[keep] for name in names})


def split_sessions(bars: Bars) -> Sessions:
    """Sessions of `bars`: trade date = date(New York time + 6 h), RTH = [09:30, 16:00) New York.

    UserError when the bar interval does not divide 30 minutes, because RTH would cut through bars.
    """
    if 1800 % bars.bar_seconds:
        raise UserError(
            f"{bars.path}: bars are {bars.bar_seconds} seconds apart; "
            "give bars of 30 minutes or a whole part of it (1 minute is best)"
        )
    date, minute = new_york(bars.ts)
    dates, first = np.unique(date, return_index=True)
    rth = (minute >= RTH_OPEN) & (minute < RTH_CLOSE)
    count = np.add.reduceat(rth.astype(np.int64), first)
    before = np.concatenate([[0], np.cumsum(rth)])
    # RTH bars follow each other in a sorted file, so the first one and their number say where they are.
    positions = np.concatenate([np.flatnonzero(rth), [len(bars)]])
    start = positions[before[first]]
    expected = RTH_MINUTES * 60 // bars.bar_seconds
    complete = count >= COMPLETE_SHARE * expected
    return Sessions(
        date=dates,
        start=start,
        stop=start + count,
        complete=complete,
        expected=expected,
        in_progress=bool(rth[-1]) and not bool(complete[-1]),
    )


def new_york(ts: Ints) -> tuple[Ints, Ints]:
    """Trade date (days since 1970-01-01) and minute of the New York day, both [rows], of stamps in UTC seconds."""
    stamps = pl.Series(ts * 1_000_000).cast(pl.Datetime("us", "UTC"))
    local = stamps.dt.convert_time_zone(ZONE).dt.replace_time_zone(None)
    date = local.dt.offset_by("6h").dt.date().cast(pl.Int64).to_numpy()
    minute = (local.dt.hour().cast(pl.Int64) * 60 + local.dt.minute().cast(pl.Int64)).to_numpy()
    return date, minute
