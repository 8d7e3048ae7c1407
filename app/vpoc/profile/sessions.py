"""Profiles of regular trading hours: of whole sessions, and developing bar by bar."""

from collections.abc import Iterator

import numpy as np

from vpoc.data.bars import Bars, Ints
from vpoc.data.sessions import Sessions
from vpoc.errors import UserError
from vpoc.profile.histogram import differences
from vpoc.profile.levels import Levels, find_levels


def session_levels(bars: Bars, sessions: Sessions, chunk_size: int) -> Iterator[Levels]:
    """Levels of the RTH profile of every session, one profile per session, `chunk_size` sessions at a time."""
    for chunk in _chunks(sessions, chunk_size):
        rows, sizes, base, width = _layout(bars, chunk)
        session = np.repeat(np.arange(len(chunk)), sizes)
        low, high, close = (part[rows] - base[session] for part in (bars.low, bars.high, bars.close))
        steps = differences(low, high, close, bars.volume[rows], session, (len(chunk), width))
        highest = np.maximum.reduceat(high, np.cumsum(sizes) - sizes)
        yield find_levels(np.cumsum(steps, axis=1)[:, :-1], np.zeros_like(base), highest, base)


def developing_levels(bars: Bars, sessions: Sessions, chunk_size: int) -> Iterator[Levels]:
    """Levels of the profile of the RTH bars up to and including each bar, one profile per RTH bar."""
    for chunk in _chunks(sessions, chunk_size):
        rows, sizes, base, width = _layout(bars, chunk)
        base = np.repeat(base, sizes)
        low, high, close = (part[rows] - base for part in (bars.low, bars.high, bars.close))
        steps = differences(low, high, close, bars.volume[rows], np.arange(len(rows)), (len(rows), width))
        lowest, highest = np.empty_like(low), np.empty_like(high)
        stops = np.cumsum(sizes)
        for start, stop in zip(stops - sizes, stops, strict=True):
            part = slice(start, stop)
            np.cumsum(steps[part], axis=0, out=steps[part])
            np.minimum.accumulate(low[part], out=lowest[part])
            np.maximum.accumulate(high[part], out=highest[part])
        np.cumsum(steps, axis=1, out=steps)
        yield find_levels(steps[:, :-1], lowest, highest, base)


def rth_rows(sessions: Sessions) -> Ints:
    """Rows of the Bars that are RTH bars of `sessions`, in order."""
    sizes = sessions.stop - sessions.start
    before = np.cumsum(sizes) - sizes
    return np.repeat(sessions.start - before, sizes) + np.arange(int(sizes.sum()))


def _chunks(sessions: Sessions, size: int) -> Iterator[Sessions]:
    for start in range(0, len(sessions), size):
        yield sessions.take(slice(start, start + size))


def _layout(bars: Bars, chunk: Sessions) -> tuple[Ints, Ints, Ints, int]:
    """Rows of the RTH bars, their number and lowest tick per session, and the widest range of ticks in the chunk."""
    rows = rth_rows(chunk)
    sizes = chunk.stop - chunk.start
    starts = np.cumsum(sizes) - sizes
    base = np.minimum.reduceat(bars.low[rows], starts)
    span = np.maximum.reduceat(bars.high[rows], starts) - base
    if (2 * span > base).any():
        date = np.datetime64(int(chunk.date[np.argmax(2 * span > base)]), "D")
        raise UserError(
            f"{bars.path}: the session of {date} has a high more than half above its low; "
            "remove the bar with the wrong price"
        )
    return rows, sizes, base, int(span.max()) + 1
