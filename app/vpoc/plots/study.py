"""The numbers behind a picture: sessions with their levels, and the naked VPOCs across them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.rolls import AUTO, roll_numbers
from vpoc.data.exchange.sessions import RTH_CLOSE, Sessions
from vpoc.profile.histogram import histograms
from vpoc.profile.levels import Levels, find_vpoc
from vpoc.profile.nodes import nodes_of
from vpoc.profile.profile import Profile, levels_of, profile_of
from vpoc.profile.session_profiles import rth_bars

BALANCE_MINUTES = 60
"""Minutes from 09:30 whose range is the initial balance."""
FOLLOWED_SESSIONS = 60
"""Number of sessions that a naked VPOC is followed for."""
NIGHT_SECONDS = 15 * 3600 + 1800
"""Seconds from 18:00 of the evening before to 09:30."""


@dataclass(frozen=True)
class Method:
    """How profiles are made: see `profile_of` and `levels_of`. `overnight`: whether bars outside RTH are drawn, too."""

    placement: str = "uniform"
    value_area: str = "two_row"
    row_ticks: int = 1
    overnight: bool = False


@dataclass(frozen=True)
class Prices:
    """Bars in the form in which they are drawn; every array is [bars drawn], prices in ticks.

    `start`, `end`: minutes after 09:30 New York of the trade date, negative before.
    """

    start: Floats
    end: Floats
    open: Ints
    high: Ints
    low: Ints
    close: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Study:
    """One session; prices in ticks.

    `date`: trade date, days since 1970-01-01.
    `half_day`: whether the exchange closed before 16:00.
    `rth`, `before`, `after`: the bars of regular hours, of the night before and of the evening.
    `developing` [RTH bars]: VPOC of the bars up to and including each.
    `hvn`, `lvn`: rows of `profile`.
    """

    date: int
    complete: bool
    half_day: bool
    rth: Prices
    before: Prices
    after: Prices
    profile: Profile
    levels: Levels
    developing: Ints
    hvn: tuple[int, ...]
    lvn: tuple[int, ...]

    @cached_property
    def vpoc(self) -> int:
        """Tick of the VPOC."""
        return int(self.levels.vpoc[0])

    @cached_property
    def value_area(self) -> tuple[int, int]:
        """Ticks of VAL and VAH."""
        return int(self.levels.val[0]), int(self.levels.vah[0])

    @cached_property
    def balance(self) -> tuple[int, int] | None:
        """Low and high of the first hour so far; None if it has no bars."""
        early = self.rth.start < BALANCE_MINUTES
        return (int(self.rth.low[early].min()), int(self.rth.high[early].max())) if early.any() else None


@dataclass(frozen=True)
class NakedLine:
    """The VPOC of a session, at `price` ticks, until a bar of the regular hours of a later session touches it.

    `date`: trade date of its session.
    `born`: index of that session among those drawn; None if it is an earlier one.
    `last`: the last drawn session that the level reaches.
    `bar`: the RTH bar of that session that touched the level; None if none did.
    """

    date: int
    price: int
    born: int | None
    last: int
    bar: int | None


def study(bars: Bars, sessions: Sessions, which: int, method: Method) -> Study:
    """Session number `which` of `sessions`, which must have RTH bars.

    UserError if its range is absurd, or the placement is `ticks` and the bars are no trades.
    """
    rows = _rth(sessions, which)
    opening = int(sessions.open_utc[which])
    night, evening = slice(rows.start, rows.start), slice(rows.stop, rows.stop)
    if method.overnight:
        # Leave out the bars of a holiday before: they belong to this night, but would fill the picture.
        first = max(int(sessions.first[which]), int(np.searchsorted(bars.ts, opening - NIGHT_SECONDS)))
        night, evening = slice(first, rows.start), slice(rows.stop, int(sessions.end[which]))
    developing = _developing(bars, sessions.take(slice(which, which + 1)), method)
    profile = _profile(bars, rows, method)
    hvn, lvn = nodes_of(profile.volume)
    return Study(
        date=int(sessions.date[which]),
        complete=bool(sessions.complete[which]),
        half_day=bool(sessions.close[which] < RTH_CLOSE),
        rth=_prices(bars, rows, opening),
        before=_prices(bars, night, opening),
        after=_prices(bars, evening, opening),
        profile=profile,
        levels=levels_of(profile, method.value_area),
        developing=developing,
        hvn=hvn,
        lvn=lvn,
    )


def naked_lines(
    bars: Bars, sessions: Sessions, drawn: Sequence[int], studies: Sequence[Study], method: Method
) -> tuple[NakedLine, ...]:
    """Return the VPOCs that are naked when some session of `drawn` begins, oldest first.

    `studies` are those of `drawn`. The VPOCs come from the 60 complete sessions before `drawn` and from `drawn`. A bar
    touches a level when low <= level <= high; RTH bars of incomplete sessions count, too. A level ends at a roll: where
    the symbol changes, or, if it names no contract, on the Monday of CME's expiry week.
    """
    rolls = roll_numbers(sessions, bars.symbols, AUTO)
    found: list[tuple[int, int, int | None]] = []
    earlier = np.flatnonzero(sessions.complete[: drawn[0]])[-FOLLOWED_SESSIONS:].tolist()
    for which in earlier:
        price = _vpoc(bars, _rth(sessions, which), method)
        between = range(which + 1, drawn[0])
        if not any(_touches(bars, _rth(sessions, later), price) for later in between):
            found.append((which, price, None))
    found += [(which, studies[born].vpoc, born) for born, which in enumerate(drawn) if studies[born].complete]
    levels = []
    for which, price, born in found:
        reached = [n for n, later in enumerate(drawn) if later > which and rolls[later] == rolls[which]]
        if reached:
            last, bar = _end(studies, reached, price)
            levels.append(NakedLine(int(sessions.date[which]), price, born, last, bar))
    return tuple(levels)


def _end(studies: Sequence[Study], reached: Sequence[int], price: int) -> tuple[int, int | None]:
    for number in reached:
        touching = (studies[number].rth.low <= price) & (price <= studies[number].rth.high)
        if touching.any():
            return number, int(np.argmax(touching))
    return reached[-1], None


def _rth(sessions: Sessions, which: int) -> slice:
    return slice(int(sessions.start[which]), int(sessions.stop[which]))


def _touches(bars: Bars, rows: slice, price: int) -> bool:
    return bool(((bars.low[rows] <= price) & (price <= bars.high[rows])).any())


def _starts(bars: Bars, rows: slice) -> Ints:
    """Start of the drawn bar that each row belongs to [rows]: single trades are combined into minutes."""
    ts = bars.ts[rows]
    return ts if bars.bar_seconds else ts // 60 * 60


def _prices(bars: Bars, rows: slice, opening: int) -> Prices:
    start = _starts(bars, rows)
    first = np.flatnonzero(np.diff(start, prepend=-1))
    if not len(first):
        return Prices(*(np.zeros(0),) * 2, *(np.zeros(0, dtype=np.int64),) * 4)
    last = np.append(first[1:], len(start)) - 1
    return Prices(
        start=(start[first] - opening) / 60,
        end=(start[first] + (bars.bar_seconds or 60) - opening) / 60,
        open=bars.open[rows][first],
        high=np.maximum.reduceat(bars.high[rows], first),
        low=np.minimum.reduceat(bars.low[rows], first),
        close=bars.close[rows][last],
    )


def _developing(bars: Bars, session: Sessions, method: Method) -> Ints:
    """Return VPOC [bars drawn], in ticks, of the RTH bars of the only `session`, up to and including each bar drawn."""
    rth = rth_bars(bars, session, method.placement)
    size = method.row_ticks
    start = _starts(bars, _rth(session, 0))
    first = np.flatnonzero(np.diff(start, prepend=-1))
    drawn = np.cumsum(np.diff(start, prepend=-1) > 0) - 1
    base = int(rth.base[0])
    below = base % size
    rows = -(-(below + int(rth.width[0])) // size)
    histogram = np.zeros((len(first), rows * size), dtype=np.int64)
    histogram[:, below : below + int(rth.width[0])] = histograms(rth.placed, drawn, (len(first), int(rth.width[0])))
    histogram = np.cumsum(histogram.reshape(len(first), rows, size).sum(axis=2), axis=0)
    low = np.minimum.accumulate(np.minimum.reduceat(rth.low, first))
    high = np.maximum.accumulate(np.maximum.reduceat(rth.high, first))
    return base - below + find_vpoc(histogram, (low + below) // size, (high + below) // size) * size


def _profile(bars: Bars, rows: slice, method: Method) -> Profile:
    columns = (bars.low[rows], bars.high[rows], bars.close[rows], bars.volume[rows])
    return profile_of(*columns, method.placement, method.row_ticks)


def _vpoc(bars: Bars, rows: slice, method: Method) -> int:
    return int(levels_of(_profile(bars, rows, method), method.value_area).vpoc[0])
