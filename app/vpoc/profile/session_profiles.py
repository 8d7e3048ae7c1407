"""Profiles of regular trading hours: of whole sessions, and developing bar by bar."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints, SmallInts
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import Sessions, ranges
from vpoc.errors import UserError
from vpoc.profile import kernel_profiles as compiled
from vpoc.profile.facts import Histograms, ProfileFacts, concatenated, profile_facts, zero_histograms
from vpoc.profile.histogram import Spread, histograms, spread
from vpoc.profile.kernel_profiles import Spans
from vpoc.profile.levels import PADDING, Levels, LevelSearch, within
from vpoc.profile.tpo import BRACKET_SECONDS, developing_tpo, session_tpo


@dataclass(frozen=True)
class RthBars:
    """RTH bars of some sessions, concatenated; every array is [bars] or [sessions].

    `rows`: of the Bars. `since_open` [bars]: seconds from the open to the begin of each. `sizes`, `starts`: how many
    bars each session has, and where they begin. `base`, `width`: lowest tick of each session, and ticks of its range.
    Prices `low`, `high` count from `base`; so does `placed`.
    """

    rows: Ints | slice
    since_open: Ints
    sizes: Ints
    starts: Ints
    base: Ints
    width: Ints
    low: Ints
    high: Ints
    placed: Spread

    @property
    def session(self) -> Ints:
        """The number of the session that each bar belongs to."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def parts(self) -> list[slice]:
        """The bars of each session."""
        return [slice(int(start), int(start + size)) for start, size in zip(self.starts, self.sizes, strict=True)]

    @property
    def brackets(self) -> Ints:
        """Half hours since the open [bars] in which the bars begin."""
        return self.since_open // BRACKET_SECONDS


def rth_bars(bars: Bars, sessions: Sessions, placement: str) -> RthBars:
    """Return the RTH bars of `sessions`, all of which have some.

    UserError as from `rth_spans`, or when `ticks` is requested for bars that are no trades.
    """
    if placement == "ticks" and bars.bar_seconds:
        raise UserError(f"{bars.path}: --placement ticks is for a file with a row per trade; this one has bars")
    rows, spans = rth_spans(bars, sessions)
    sizes, base = spans.size, spans.base
    starts = np.cumsum(sizes) - sizes
    low, high = bars.low[rows], bars.high[rows]
    origin = np.repeat(base, sizes)
    low, high, close = low - origin, high - origin, bars.close[rows] - origin
    if placement == "typical":
        # Rounding applies to the price itself, not to its distance from the base.
        placed = spread(low + origin, high + origin, close + origin, bars.volume[rows], placement)
        placed = Spread(placed.low - origin, placed.high - origin, placed.share, placed.run - origin, placed.left)
    else:
        placed = spread(low, high, close, bars.volume[rows], placement)
    since_open = bars.ts[rows] - np.repeat(sessions.open_utc, sizes)
    return RthBars(rows, since_open, sizes, starts, base, spans.width, low, high, placed)


def rth_spans(bars: Bars, sessions: Sessions) -> tuple[Ints | slice, Spans]:
    """Return the rows of the RTH bars of `sessions`, all of which have some, and the sessions' ranges.

    UserError if a range is absurd.
    """
    sizes = sessions.stop - sessions.start
    joined_up = len(sizes) and np.array_equal(sessions.start[1:], sessions.stop[:-1])
    # Slicing the columns does not copy them.
    rows = slice(sessions.start[0], sessions.stop[-1]) if joined_up else ranges(sessions.start, sessions.stop)
    starts = np.cumsum(sizes) - sizes
    base = np.minimum.reduceat(bars.low[rows], starts)
    width = np.maximum.reduceat(bars.high[rows], starts) - base + 1
    if (2 * width > base).any():
        date = np.datetime64(int(sessions.date[np.argmax(2 * width > base)]), "D")
        raise UserError(
            f"{bars.path}: the session of {date} has a high more than half above its low; "
            "remove the bar with the wrong price"
        )
    return rows, Spans(sessions.start, sizes, base, width)


def session_chunks(sessions: Sessions, size: int) -> Iterator[Sessions]:
    """Yield `sessions`, `size` at a time."""
    for start in range(0, len(sessions), size):
        yield sessions.take(slice(start, start + size))


def session_levels(
    bars: Bars, sessions: Sessions, chunk_size: int, placement: str = "uniform", method: str = "two_row"
) -> Levels:
    """Return levels of the RTH profile of every session; histograms are built for `chunk_size` sessions at a time."""
    if compiled.present() and placement != "ticks":
        return compiled.kernel_levels(bars, rth_spans(bars, sessions)[1], placement, method)
    parts = []
    for chunk in session_chunks(sessions, chunk_size):
        rth = rth_bars(bars, chunk, placement)
        found = histograms(rth.placed, rth.session, (len(chunk), int(rth.width.max())))
        parts.append(LevelSearch.of(found, np.zeros_like(rth.base), rth.width - 1, rth.base, method))
    # Value areas grow step by step, so many at a time cost little more than a few.
    return concatenated(parts).levels(method)


def session_profiles(rth: RthBars, method: str) -> tuple[ProfileFacts, Ints]:
    """Facts of the RTH profile of every session, and the histograms [sessions, widest], from each session's base."""
    shape = (len(rth.sizes), int(rth.width.max()))
    found = histograms(rth.placed, rth.session, shape)
    padded = zero_histograms(shape[0], shape[1] + 2 * PADDING, largest_volume(rth))
    padded[:, PADDING:-PADDING] = found
    tpo = np.pad(session_tpo(rth.low, rth.high, rth.brackets, rth.session, shape), ((0, 0), (PADDING, PADDING)))
    part = Histograms(padded, np.zeros_like(rth.base), rth.width - 1, rth.base, tpo)
    return profile_facts([part], method), found


def developing_profiles(rth: RthBars, method: str) -> ProfileFacts:
    """Return the facts of the profile of the bars of each session up to and including each bar, one profile per bar."""
    largest, brackets = largest_volume(rth), rth.brackets
    found = []
    for part, width, base in zip(rth.parts, rth.width.tolist(), rth.base.tolist(), strict=True):
        low, high = rth.low[part], rth.high[part]
        padded = developing_histograms(rth.placed.take(part), width, largest)
        inside = within(low + PADDING, high + PADDING, padded.shape[1])
        tpo = developing_tpo(inside, brackets[part])
        ends = np.minimum.accumulate(low), np.maximum.accumulate(high)
        found.append(Histograms(padded, *ends, np.full(len(low), base), tpo))
    return profile_facts(found, method)


def developing_histograms(placed: Spread, columns: int, largest: int, padding: int = PADDING) -> SmallInts:
    """Return histograms [bars, columns + 2 * padding] of the bars up to and including each bar.

    No sum exceeds `largest`.
    """
    padded = zero_histograms(len(placed.low), columns + 2 * padding, largest)
    flat = padded.reshape(-1)
    origin = np.arange(len(padded)) * padded.shape[1] + padding
    # Add each bar's volume only on the ticks of its range.
    flat[ranges(origin + placed.low, origin + placed.high + 1)] = np.repeat(
        placed.share.astype(flat.dtype), placed.high - placed.low + 1
    )
    if placed.left.any():
        flat[ranges(origin + placed.run, origin + placed.run + placed.left)] += 1
    return np.cumsum(padded, axis=0, out=padded)


def largest_volume(rth: RthBars) -> int:
    """Return the volume of the session with the most volume."""
    placed = rth.placed
    volume = placed.share * (placed.high - placed.low + 1) + placed.left
    return int(np.add.reduceat(volume, rth.starts).max())
