"""Computes the layout of a picture: the x axis in minutes, with a slot for every session.

The y axis in index points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpoc.data.columns import TICK
from vpoc.plots.study import NakedLine, Study

SHORTEST = 30.0
"""Least width of a session, in minutes."""
STRIP, GAP, BETWEEN = 0.30, 0.02, 0.07
"""Width of a profile, its distance from the bars, and the distance to the next session, in longest sessions."""
LEFT, RIGHT = 1.0, 1.15
"""Inches for labels at the sides; those at the left only if there are naked levels."""
HEADROOM = 0.04
REACH = 0.25
"""A naked level is drawn up to this share of the range beyond the bars."""
LEAST_TICKS = 8


@dataclass(frozen=True)
class Slot:
    """The x coordinates of one session: `zero` is 09:30; bars lie in `left`..`right`, the profile in `strip`..`end`."""

    zero: float
    left: float
    right: float
    strip: float
    end: float


@dataclass(frozen=True)
class PictureLayout:
    """The slots of the sessions, and limits of the axes (y in index points).

    `near`, `far`: naked levels to draw, and those too far away.
    `inch`: the width of an inch in minutes.
    """

    slots: tuple[Slot, ...]
    x: tuple[float, float]
    inch: float
    y: tuple[float, float]
    near: tuple[NakedLine, ...]
    far: tuple[NakedLine, ...]


def lay_out(studies: Sequence[Study], naked: Sequence[NakedLine], inches: float) -> PictureLayout:
    """Return the layout of `studies`, at least one, on axes that are `inches` wide."""
    slots = _slots(studies)
    drawn = [prices for shown in studies for prices in (shown.before, shown.rth, shown.after) if len(prices)]
    low = min(int(prices.low.min()) for prices in drawn)
    high = max(int(prices.high.max()) for prices in drawn)
    reach = max(LEAST_TICKS, (high - low) * REACH)
    near = tuple(level for level in naked if low - reach <= level.price <= high + reach)
    low = min([low, *(level.price for level in near)])
    high = max([high, *(level.price for level in near)])
    room = max((high - low) * HEADROOM, LEAST_TICKS / 2)
    left = LEFT if any(level.born is None for level in near) else 0.0
    end = slots[-1].end
    inch = end / (inches - left - RIGHT)
    return PictureLayout(
        slots=slots,
        x=(-left * inch, end + RIGHT * inch),
        inch=inch,
        y=((low - room) * TICK, (high + room) * TICK),
        near=near,
        far=tuple(level for level in naked if level not in near),
    )


def _slots(studies: Sequence[Study]) -> tuple[Slot, ...]:
    spans = [_span(shown) for shown in studies]
    longest = max(end - start for start, end in spans)
    slots = []
    at = 0.0
    for start, end in spans:
        zero, right = at - start, at + end - start
        strip = right + GAP * longest
        slots.append(Slot(zero, at, right, strip, strip + STRIP * longest))
        at = strip + (STRIP + BETWEEN) * longest
    return tuple(slots)


def _span(shown: Study) -> tuple[float, float]:
    """Return the first and last minute after 09:30 of a session's slot."""
    start = min([0.0, *shown.before.start[:1]])
    end = float(max([*shown.rth.end[-1:], *shown.after.end[-1:]]))
    return start, max(end, start + SHORTEST)


def spread_labels(wanted: Sequence[float], gap: float) -> list[float]:
    """Return the places as close as possible to `wanted`, in the same order of height, at least `gap` apart."""
    order = np.argsort(np.asarray(wanted), kind="stable")
    # Each group is [sum of the lowest places that its members want, members]; overlapping groups are merged.
    groups: list[list[float]] = []
    for index in order:
        groups.append([wanted[index], 1])
        while len(groups) > 1 and _bottom(groups[-2]) + gap * groups[-2][1] > _bottom(groups[-1]):
            total, members = groups.pop()
            groups[-1][0] += total - gap * groups[-1][1] * members
            groups[-1][1] += members
    places = [0.0] * len(wanted)
    at = iter(order)
    for group in groups:
        for member in range(int(group[1])):
            places[next(at)] = _bottom(group) + gap * member
    return places


def _bottom(group: Sequence[float]) -> float:
    return group[0] / group[1]
