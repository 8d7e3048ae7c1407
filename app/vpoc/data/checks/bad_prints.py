"""Bad prints: bars with a price that no bar around them comes near, without the volume of a market event."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.checks.months import Month, Months
from vpoc.data.columns import TICK
from vpoc.data.exchange.sessions import split_sessions
from vpoc.errors import UserError

NEIGHBOURS = 6
"""Number of bars on each side to compare with."""
GROSS_SHARE, DOUBTFUL_SHARE = 0.015, 0.0075
"""Share of the price by which a bad print exceeds the bars on both sides.

News move the price by 1 % and back within minutes, but the volume rises as well.
"""
GROSS_RANGES, DOUBTFUL_RANGES = 8, 12
"""Number of usual ranges of a bar by which it exceeds them.

The usual range is the larger of the median of the bars around it and the median at its time of day.
"""
EVENT_VOLUME = 4
"""Multiple of the usual volume that marks an event, whose prices are traded."""
SURE_SHARE = 0.03
"""No event moved the price this far from the bars on both sides, whatever its volume; on 2010-05-06 it was 2 %."""
BUCKET = 1800
"""Seconds; bars of the same half hour of the day are compared with each other."""
LARGEST_RANGE = 1024
"""Largest range that is counted, in ticks."""


@dataclass(frozen=True)
class Print:
    """A bad print: bar `row` of its file, its stamp and line, how its price stands out, and if training refuses it."""

    row: int
    ts: int
    line: int
    shown: str
    gross: bool


def bad_prints(bars: Bars, line: Ints) -> list[Print]:
    """Return the bad prints among `bars`, sorted by time, with the lines `line` [rows].

    Each month is judged by itself.
    """
    months = Months(NEIGHBOURS)
    return [one for month in (*months.add(bars, line), *months.rest()) for one in bad_prints_of(month)]


def bad_prints_of(month: Month) -> list[Print]:
    """Return the bad prints of a month, which has NEIGHBOURS bars on both sides if there are as many."""
    bars = month.bars
    if len(bars) <= NEIGHBOURS:
        return []
    rows = _candidates(bars)
    rows = rows[(rows >= month.start) & (rows < month.stop)]
    if not len(rows):
        return []
    beyond, up, usual, volume = _compared(bars, rows)
    price = np.maximum(np.maximum(np.abs(bars.close[rows]), np.abs(bars.close[rows - 1])), 1)
    share = beyond / price
    usual = np.maximum(usual, _usual_at(bars, rows))
    event = bars.volume[rows] > EVENT_VOLUME * volume if bars.bar_seconds else np.zeros(len(rows), dtype=np.bool_)
    quiet = ~event | (share >= SURE_SHARE)
    gross = quiet & (share >= GROSS_SHARE) & (beyond >= GROSS_RANGES * usual)
    doubtful = quiet & (share >= DOUBTFUL_SHARE) & (beyond >= DOUBTFUL_RANGES * usual)
    return list(_told(month, rows, beyond, up, gross, gross | doubtful))


def _candidates(bars: Bars) -> Ints:
    """Return the bars to or from which the price moves far."""
    price = int(np.abs(bars.close[:: max(len(bars) // 1024, 1)]).min())
    span = np.maximum(bars.high[1:], bars.high[:-1]) - np.minimum(bars.low[1:], bars.low[:-1])
    far = np.flatnonzero(span > max(DOUBTFUL_SHARE * price, 1))
    rows: Ints = np.unique(np.concatenate([far, far + 1]))
    return rows


def _compared(bars: Bars, rows: Ints) -> tuple[Ints, Flags, Floats, Floats]:
    """Return how far the bars `rows` exceed their neighbours, whether upwards, and the usual range and volume there."""
    around = rows[:, None] + np.concatenate([np.arange(-NEIGHBOURS, 0), np.arange(1, NEIGHBOURS + 1)])
    inside = np.clip(around, 0, len(bars) - 1)
    high, low = bars.high[inside], bars.low[inside]
    top = np.maximum(*(np.median(part, axis=1) for part in (high[:, :NEIGHBOURS], high[:, NEIGHBOURS:])))
    bottom = np.minimum(*(np.median(part, axis=1) for part in (low[:, :NEIGHBOURS], low[:, NEIGHBOURS:])))
    above, below = bars.high[rows] - top, bottom - bars.low[rows]
    usual, volume = np.median(high - low, axis=1), np.median(bars.volume[inside], axis=1)
    return np.maximum(above, below).astype(np.int64), above >= below, usual, volume


def _usual_at(bars: Bars, rows: Ints) -> Floats:
    """Return the median range of the bars in the same half hour of the day as each of `rows`."""
    bucket = bars.ts % 86_400 // BUCKET
    ranges = np.clip(bars.high - bars.low, 0, LARGEST_RANGE - 1)
    counts = np.bincount(bucket * LARGEST_RANGE + ranges, minlength=86_400 // BUCKET * LARGEST_RANGE)
    below = np.cumsum(counts.reshape(-1, LARGEST_RANGE), axis=1)
    median: Floats = (below < (below[:, -1:] + 1) / 2).sum(axis=1)
    return median[bucket[rows]]


def _told(month: Month, rows: Ints, beyond: Ints, up: Flags, gross: Flags, chosen: Flags) -> Iterator[Print]:
    bars = month.bars
    for place in np.flatnonzero(chosen).tolist():
        row = int(rows[place])
        price = bars.high[row] if up[place] else bars.low[row]
        where = "above" if up[place] else "below"
        share = beyond[place] / max(abs(int(price - beyond[place] * (1 if up[place] else -1))), 1)
        shown = f"{price * TICK:g}, {beyond[place] * TICK:g} points ({share:.1%}) {where} the bars around it"
        of_file = month.row + row - month.start
        yield Print(of_file, int(bars.ts[row]), int(month.line[row]), shown + _changes(bars, row), bool(gross[place]))


def _changes(bars: Bars, row: int) -> str:
    """Return in words what the bar changes: the range of its session, and the rows of how many sessions."""
    try:
        sessions = split_sessions(bars)
    except UserError:
        return ""
    place = int(np.searchsorted(sessions.first, row, side="right")) - 1
    if not sessions.start[place] <= row < sessions.stop[place]:
        return "; it changes the overnight features of its session"
    part = slice(int(sessions.start[place]), int(sessions.stop[place]))
    others = np.arange(part.start, part.stop) != row
    if not others.any():
        return ""
    high, low = bars.high[part], bars.low[part]
    now, without = int(high.max() - low.min()), int(high[others].max() - low[others].min())
    return (
        f"; with it the range of its session is {now} ticks, without it {without}, and adr20 of the 20 sessions after "
        "it follows"
    )
