"""Computes facts of each session from bars: all that later rows look back to, and what a session row is made from."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import RTH_OPEN, Sessions
from vpoc.features.feature_options import FeatureOptions
from vpoc.profile.facts import ProfileFacts, concatenated
from vpoc.profile.flow import Flow
from vpoc.profile.moments import Moments, profile_moments
from vpoc.profile.rth import session_rth_facts
from vpoc.profile.session_profiles import RthBars, rth_bars

IB_SECONDS = 3600
"""The initial balance is the first hour: bars that start before 10:30."""


@dataclass(frozen=True)
class SessionFacts:
    """Facts of sessions with RTH bars, in order; every array is [sessions], prices in ticks, volumes in contracts.

    `open` .. `close`: of RTH.
    `moments`: of the profile, the mean relative to the open.
    `vpoc_age`: minutes from the last move of the developing VPOC to the close.
    `curve` [sessions, slots]: RTH volume up to and including each bar's time.
    `on_*`: overnight; without bars `on_high` is below `on_low`.
    `eth_volume`: overnight, RTH and after, to 17:00.
    `vix_close`: of the last bar that ends by 17:00.
    `vix_open`: of the last overnight bar, NaN without any.
    `histogram`: of RTH, one array of rows from `profile.low` on for each session.
    """

    sessions: Sessions
    open: Ints
    high: Ints
    low: Ints
    close: Ints
    profile: ProfileFacts
    moments: Moments
    vpoc_age: Floats
    flow: Flow
    ib_high: Ints
    ib_low: Ints
    curve: Ints
    on_volume: Ints
    on_high: Ints
    on_low: Ints
    eth_volume: Ints
    vix_close: Floats
    vix_open: Floats
    histogram: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.open)

    @cached_property
    def full(self) -> Ints:
        """Indices of the complete sessions of full length."""
        return np.flatnonzero(self.sessions.complete & (self.sessions.close == self.sessions.close.max()))

    @cached_property
    def total_curve(self) -> Ints:
        """Cumulative `curve` of the full sessions [full sessions + 1, slots]: row n is the sum of the first n."""
        return np.concatenate([np.zeros_like(self.curve[:1]), np.cumsum(self.curve[self.full], axis=0)])

    @staticmethod
    def concatenate(parts: "list[SessionFacts]") -> "SessionFacts":
        """Return the sessions of all `parts`, in their order."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in SessionFacts.__annotations__ if name not in {"sessions", "histogram"}]
        return SessionFacts(
            sessions=Sessions.concatenate([part.sessions for part in parts]),
            histogram=tuple(rows for part in parts for rows in part.histogram),
            **{name: concatenated([getattr(part, name) for part in parts]) for name in names},
        )


def find_session_facts(bars: Bars, sessions: Sessions, options: FeatureOptions) -> SessionFacts:
    """Return the facts of `sessions`, all of which have RTH bars."""
    given = sessions
    bars, sessions = _own(bars, sessions)
    rth = rth_bars(bars, sessions, options.placement)
    facts, found = session_rth_facts(bars, sessions, rth, options.placement, options.value_area)
    levels, high, low = facts.profile.levels, np.maximum.reduceat(bars.high[rth.rows], rth.starts), rth.base
    volume = np.concatenate([[0], np.cumsum(bars.volume)])
    overnight = sessions.start > sessions.first
    return SessionFacts(
        sessions=given,
        open=bars.open[sessions.start],
        high=high,
        low=low,
        close=bars.close[sessions.stop - 1],
        profile=facts.profile,
        moments=profile_moments(
            rth.placed,
            np.repeat(bars.open[sessions.start] - low, rth.sizes),
            lambda values: np.add.reduceat(values, rth.starts),
            levels.volume,
            rth.width,
            levels.vpoc_volume < levels.volume,
        ),
        vpoc_age=(sessions.close_utc - bars.ts[sessions.start + facts.moved] - bars.bar_seconds) / 60,
        flow=facts.flow,
        **_initial_balance(rth),
        curve=volume_curve(bars, rth, options.close_minute),
        on_volume=volume[sessions.start] - volume[sessions.first],
        on_high=np.where(overnight, _before_open(np.maximum, bars.high, sessions), 0),
        on_low=np.where(overnight, _before_open(np.minimum, bars.low, sessions), 1),
        eth_volume=volume[sessions.end] - volume[sessions.first],
        vix_close=bars.vix[sessions.end - 1],
        vix_open=np.where(overnight, bars.vix[sessions.start - 1], np.nan),
        histogram=tuple(rows[:width] for rows, width in zip(found, rth.width.tolist(), strict=True)),
    )


def _own(bars: Bars, sessions: Sessions) -> tuple[Bars, Sessions]:
    """Return only the bars of `sessions`, and the sessions with their rows counted within those bars.

    The cut is needed because the sums run over all bars they are given.
    """
    before = int(sessions.first[0])
    moved = {name: getattr(sessions, name) - before for name in ("first", "start", "stop", "end")}
    return bars.take(slice(before, int(sessions.end[-1]))), replace(sessions, **moved)


def volume_curve(bars: Bars, rth: RthBars, close: int) -> Ints:
    """Return RTH volume [sessions, slots] of the bars that begin in a slot or before; a slot is as long as a bar."""
    step = bars.bar_seconds or 60
    slots = (close - RTH_OPEN) * 60 // step
    curve = np.zeros(len(rth.sizes) * slots, dtype=np.int64)
    np.add.at(curve, rth.session * slots + rth.since_open // step, bars.volume[rth.rows])
    total: Ints = np.cumsum(curve.reshape(-1, slots), axis=1)
    return total


def _initial_balance(rth: RthBars) -> dict[str, Ints]:
    """Return the highest and lowest price of the first hour; those of RTH if the first hour has no bars."""
    first_hour = rth.since_open < IB_SECONDS
    none = ~np.logical_or.reduceat(first_hour, rth.starts)
    inside = first_hour | np.repeat(none, rth.sizes)
    high = np.where(inside, rth.high, -1)
    low = np.where(inside, rth.low, np.iinfo(np.int64).max)
    return {
        "ib_high": rth.base + np.maximum.reduceat(high, rth.starts),
        "ib_low": rth.base + np.minimum.reduceat(low, rth.starts),
    }


def _before_open(extreme: np.ufunc, prices: Ints, sessions: Sessions) -> Ints:
    edges = np.stack([sessions.first, sessions.start], axis=1).reshape(-1)
    found: Ints = extreme.reduceat(prices, edges)[::2]
    return found
