"""Snapshots: what is known at the as-of time of each row, of a whole session or of a session so far."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.selection import HISTORY
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.look_back import Naked, composite_vpocs, mean_of_last, naked, naked_levels
from vpoc.features.session_facts import IB_SECONDS, SessionFacts
from vpoc.features.table import Snapshot
from vpoc.profile import kernel_profiles as compiled
from vpoc.profile.facts import ProfileFacts
from vpoc.profile.moments import profile_moments
from vpoc.profile.rth import developing_facts
from vpoc.profile.session_profiles import RthBars, rth_bars

NAKED_SESSIONS = 60
COMPOSITES = {"comp5": 5, "comp20": 20}


def session_snapshot(days: SessionFacts, rolls: Ints, t: Ints, options: FeatureOptions) -> Snapshot:
    """Return snapshots of whole sessions, those with the indices `t` [rows], as of their close or of the next open."""
    done, place = _complete(days, t)
    before, levels = done[place - 1], days.profile.levels
    reach = min(NAKED_SESSIONS, options.lookback)
    level, age, alive = naked_levels(days, rolls, t, reach, after=True)
    at_open = options.as_of == "open"
    price = days.open[t + 1] if at_open else days.close[t]
    night = t + 1 if at_open else t
    vix = np.where(np.isnan(days.vix_open[night]), days.vix_close[t], days.vix_open[night]) if at_open else None
    moments = _take(days.moments, t)
    return Snapshot(
        high=days.high[t],
        low=days.low[t],
        close=days.close[t],
        price=price,
        profile=_take(days.profile, t),
        vwap=days.open[t] + moments.mean,
        std=moments.std,
        skew=moments.skew,
        kurt=moments.kurt,
        ib_range=days.ib_high[t] - days.ib_low[t],
        ext_up=days.high[t] - days.ib_high[t],
        ext_dn=days.ib_low[t] - days.low[t],
        vpoc_age=days.vpoc_age[t],
        usual_volume=_usual_volume(days, t, (days.sessions.expected[t] - 1)),
        on_volume=days.on_volume[night],
        on_range=np.maximum(days.on_high[night] - days.on_low[night], 0),
        day_volume=days.on_volume[night] + levels.volume[t] if at_open else days.eth_volume[t],
        flow=_take(days.flow, t),
        **_prior(days, done, place),
        entry=price if at_open else days.open[t],
        entry_vah=levels.vah[t if at_open else before],
        entry_val=levels.val[t if at_open else before],
        entry_close=days.close[t if at_open else before],
        **_composites(days, rolls, done, place + 1),
        naked=naked(level, age, alive, price),
        **_volatility(days, done, place + 1, vix, days.vix_close[before]),
    )


def bar_snapshots(bars: Bars, days: SessionFacts, rolls: Ints, t: Ints, options: FeatureOptions) -> Snapshot:
    """Return the snapshots at the end of each RTH bar of the sessions with the indices `t`, in order."""
    sessions = days.sessions.take(t)
    rth = rth_bars(bars, sessions, options.placement)
    row = np.repeat(t, rth.sizes)
    facts = developing_facts(bars, sessions, rth, options.placement, options.value_area)
    profile = facts.profile
    high, low = profile.high, profile.low
    volume = profile.levels.volume
    first_open = np.repeat(bars.open[sessions.start], rth.sizes)
    moments = profile_moments(
        rth.placed,
        first_open - np.repeat(rth.base, rth.sizes),
        lambda values: _running(values, rth),
        volume,
        high - low + 1,
        profile.levels.vpoc_volume < volume,
    )
    ib_high, ib_low = _first_hour(rth, high, low)
    moved = rth.since_open[np.repeat(rth.starts, rth.sizes) + facts.moved]
    done, place = _complete(days, t)
    per_session: dict[str, Any] = {
        **_prior(days, done, place),
        **_composites(days, rolls, done, place),
        **_volatility(days, done, place, None, days.vix_close[done[place - 1]]),
    }
    repeated = {name: np.repeat(values, rth.sizes) for name, values in per_session.items() if name != "vix"}
    return Snapshot(
        high=high,
        low=low,
        close=bars.close[rth.rows],
        price=bars.close[rth.rows],
        profile=profile,
        vwap=first_open + moments.mean,
        std=moments.std,
        skew=moments.skew,
        kurt=moments.kurt,
        ib_range=ib_high - ib_low,
        ext_up=high - ib_high,
        ext_dn=ib_low - low,
        vpoc_age=(rth.since_open - moved) / 60,
        usual_volume=_usual_volume(days, row, rth.since_open // (bars.bar_seconds or 60)),
        on_volume=days.on_volume[row],
        on_range=np.maximum(days.on_high[row] - days.on_low[row], 0),
        day_volume=days.on_volume[row] + volume,
        flow=facts.flow,
        entry=first_open,
        entry_vah=repeated["vah_1"],
        entry_val=repeated["val_1"],
        entry_close=repeated["close_1"],
        naked=_naked_so_far(days, rolls, t, rth, profile, bars.close[rth.rows], min(NAKED_SESSIONS, options.lookback)),
        vix=bars.vix[rth.rows],
        **repeated,
    )


def _take(facts: Any, rows: Ints) -> Any:
    """Return the given rows of a dataclass of arrays."""
    if isinstance(facts, np.ndarray):
        return facts[rows]
    return type(facts)(**{name: _take(value, rows) for name, value in vars(facts).items()})


def _complete(days: SessionFacts, t: Ints) -> tuple[Ints, Ints]:
    """Return the indices of the complete sessions, and the number of them before each of `t`."""
    done = np.flatnonzero(days.sessions.complete)
    return done, np.searchsorted(done, t)


def _prior(days: SessionFacts, done: Ints, place: Ints) -> dict[str, Any]:
    before, levels = done[place - 1], days.profile.levels
    return {
        "vpoc_1": levels.vpoc[before],
        "vah_1": levels.vah[before],
        "val_1": levels.val[before],
        "close_1": days.close[before],
        "vpoc_5": levels.vpoc[done[place - 5]],
    }


def _composites(days: SessionFacts, rolls: Ints, done: Ints, stop: Ints) -> dict[str, Any]:
    """Return the VPOC of the composites of complete sessions up to place `stop`-1 in `done`, cut at the last roll."""
    since_roll = np.searchsorted(rolls[done], rolls[done][stop - 1])
    begins = [np.maximum(stop - count, since_roll) for count in COMPOSITES.values()]
    return dict(zip(COMPOSITES, composite_vpocs(days, done, begins, stop), strict=True))


def _volatility(days: SessionFacts, done: Ints, stop: Ints, vix: Floats | None, vix_before: Floats) -> dict[str, Any]:
    """Return the range and VIX of the 20 complete sessions up to place `stop`-1 in `done`.

    If `vix` is None, the last close counts.
    """
    closes = days.vix_close[done]
    window = sliding_window_view(closes, HISTORY)[stop - HISTORY]
    constant = window.max(axis=1) == window.min(axis=1)
    return {
        "vix": closes[stop - 1] if vix is None else vix,
        "vix_1": vix_before,
        "vix_mean": window.mean(axis=1),
        # Rounding errors of equal values are no spread.
        "vix_std": np.where(constant, 0.0, window.std(axis=1)),
        "adr": mean_of_last((days.high - days.low)[done], stop, HISTORY),
    }


def _usual_volume(days: SessionFacts, row: Ints, slot: Ints) -> Floats:
    """Return the mean volume [rows] of the 20 full sessions before each session of `row`.

    Volume counts up to and including `slot` [rows].
    """
    total, stop = days.total_curve, np.searchsorted(days.full, row)
    return (total[stop, slot] - total[stop - HISTORY, slot]) / float(HISTORY)


def _running(values: Any, rth: RthBars) -> Any:
    """Return the cumulative sums [bars, n] of the values of each session, including each bar."""
    found = np.empty_like(values)
    for part in rth.parts:
        np.cumsum(values[part], axis=0, out=found[part])
    return found


def _first_hour(rth: RthBars, high: Ints, low: Ints) -> tuple[Ints, Ints]:
    """Return the highest and lowest price of the first hour so far, [bars] each.

    They are those of RTH so far if the first hour has no bars.
    """
    place = np.arange(len(rth.low))
    last = np.maximum.accumulate(np.where(rth.since_open < IB_SECONDS, place, -1))
    last = np.where(last >= np.repeat(rth.starts, rth.sizes), last, place)
    return high[last], low[last]


def _naked_so_far(
    days: SessionFacts, rolls: Ints, t: Ints, rth: RthBars, profile: ProfileFacts, price: Ints, reach: int
) -> Naked:
    level, age, alive = naked_levels(days, rolls, t, reach, after=False)
    # Few levels are alive, so only those are compared with the bars.
    most = int(np.count_nonzero(alive, axis=1).max(initial=1))
    order = np.argsort(~alive, axis=1, kind="stable")[:, :most]
    level, age = np.take_along_axis(level, order, axis=1), np.take_along_axis(age, order, axis=1)
    alive = np.take_along_axis(alive, order, axis=1)
    if compiled.present():
        return Naked(*compiled.naked_at_bars(rth.sizes, profile.low, profile.high, price, level, age, alive))
    level, age = np.repeat(level, rth.sizes, axis=0), np.repeat(age, rth.sizes, axis=0)
    untouched: Flags = (level < profile.low[:, None]) | (level > profile.high[:, None])
    return naked(level, age, np.repeat(alive, rth.sizes, axis=0) & untouched, price)
