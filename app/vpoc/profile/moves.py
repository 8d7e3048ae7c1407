"""Finds when the developing VPOC of a session last moved, without computing all its developing profiles."""

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.profile.histogram import Spread
from vpoc.profile.levels import find_vpoc
from vpoc.profile.session_profiles import RthBars, developing_histograms, largest_volume

RIVALS = 32
"""Number of ticks with most volume at the end; the last move is nearly always one between these."""


def last_moves(rth: RthBars, histograms: Ints, vpoc: Ints) -> Ints:
    """Return the bar of each session [sessions], counted from its first, at which the developing VPOC last moved.

    `histograms` [sessions, columns] and `vpoc` [sessions] are those of whole sessions, columns counted from their base.
    """
    largest = largest_volume(rth)
    found = []
    for number, (part, width) in enumerate(zip(rth.parts, rth.width.tolist(), strict=True)):
        placed = rth.placed.take(part)
        column = int(vpoc[number])
        move = _among_rivals(placed, rth.low[part], rth.high[part], histograms[number, :width], column)
        if move is None:
            first, last = np.minimum.accumulate(rth.low[part]), np.maximum.accumulate(rth.high[part])
            move = _last(find_vpoc(developing_histograms(placed, width, largest, padding=0), first, last) != column)
        found.append(move)
    return np.array(found)


def _among_rivals(placed: Spread, low: Ints, high: Ints, histogram: Ints, vpoc: int) -> int | None:
    """Return the bar, if the last move was between the VPOC and its rivals; else None."""
    rivals = np.argpartition(histogram, -RIVALS - 1) if len(histogram) > RIVALS + 1 else np.arange(len(histogram))
    others, rivals = rivals[: -RIVALS - 1], rivals[-RIVALS - 1 :]
    rivals = rivals[rivals != vpoc]
    own = np.cumsum(_volume_at(placed, np.array([vpoc])), axis=0)[:, 0]
    # Volume only grows: from this bar on, no tick but the rivals can have as much as the VPOC.
    begin = int(np.searchsorted(own, histogram[others].max(initial=0), side="right"))
    later = placed.take(slice(begin + 1, None))
    own = own[begin:-1]
    if not len(own) or not len(rivals):
        return None
    volume = histogram[rivals] - np.cumsum(_volume_at(later, rivals)[::-1], axis=0)[::-1]
    beaten = (volume > own[:, None]).any(axis=1)
    tied = volume == own[:, None]
    if tied.any():
        middle = (np.minimum.accumulate(low) + np.maximum.accumulate(high))[begin:-1]
        distance, far = np.abs(2 * vpoc - middle)[:, None], np.abs(2 * rivals - middle[:, None])
        beaten |= (tied & ((far < distance) | ((far == distance) & (rivals < vpoc)))).any(axis=1)
    return begin + _last(beaten) if beaten.any() else None


def _volume_at(placed: Spread, columns: Ints) -> Ints:
    """Return the volume [bars, columns] that each bar puts on each of `columns`."""
    low, high, run = placed.low[:, None], placed.high[:, None], placed.run[:, None]
    inside = (low <= columns) & (columns <= high)
    extra = (run <= columns) & (columns < run + placed.left[:, None])
    return inside * placed.share[:, None] + extra


def _last(elsewhere: Ints | Floats) -> int:
    """Return the bar after the last one whose VPOC is elsewhere."""
    places = np.flatnonzero(elsewhere)
    return int(places[-1]) + 1 if len(places) else 0
