"""Volume by direction of the bar: a proxy, not order flow."""

from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.profile.session_profiles import RthBars


@dataclass(frozen=True)
class Flow:
    """Volume by direction of the bar; every array is [sessions] or [bars], contracts.

    `signed`: volume of rising bars less that of falling ones.
    `signed_at`, `volume_at`: the same, and the volume, of the bars whose range has the VPOC in it.
    """

    signed: Ints
    signed_at: Ints
    volume_at: Ints


def signed_volume(bars: Bars, rth: RthBars) -> Ints:
    """Return the volume of each RTH bar [bars], negative if it closed below its open, 0 if it closed at its open."""
    signed: Ints = np.sign(bars.close[rth.rows] - bars.open[rth.rows]) * bars.volume[rth.rows]
    return signed


def session_flow(bars: Bars, rth: RthBars, vpoc: Ints) -> Flow:
    """Return the flow of whole sessions, whose VPOC [sessions] is in ticks."""
    signed, volume = signed_volume(bars, rth), bars.volume[rth.rows]
    level = np.repeat(vpoc - rth.base, rth.sizes)
    at = (rth.low <= level) & (level <= rth.high)
    return Flow(*(np.add.reduceat(values, rth.starts) for values in (signed, signed * at, volume * at)))


def developing_flow(bars: Bars, rth: RthBars, vpoc: Ints) -> Flow:
    """Return the flow of the bars of each session up to and including each bar.

    The VPOC [bars] is that of the same time, in ticks.
    """
    signed = signed_volume(bars, rth)
    volume = bars.volume[rth.rows]
    total, at, whole = np.empty_like(signed), np.empty_like(signed), np.empty_like(signed)
    for part, base in zip(rth.parts, rth.base.tolist(), strict=True):
        np.cumsum(signed[part], out=total[part])
        level = vpoc[part] - base
        # The VPOC moves seldom, so between its moves one level is computed for all bars.
        for price in np.unique(level).tolist():
            asked = np.flatnonzero(level == price) + part.start
            holds = (rth.low[part] <= price) & (price <= rth.high[part])
            at[asked] = np.cumsum(signed[part] * holds)[asked - part.start]
            whole[asked] = np.cumsum(volume[part] * holds)[asked - part.start]
    return Flow(total, at, whole)
