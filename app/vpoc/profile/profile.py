"""One profile: the volume at each row of prices."""

from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints
from vpoc.profile.histogram import histograms, spread
from vpoc.profile.levels import Levels, find_levels


@dataclass(frozen=True)
class Profile:
    """`volume` [rows], contracts; row k has the ticks `base` + k * `row_ticks` and the `row_ticks` - 1 above.

    `base` is a multiple of `row_ticks`, so that the rows of all profiles lie on one grid.
    """

    base: int
    volume: Ints
    row_ticks: int = 1


def profile_of(
    low: Ints, high: Ints, close: Ints, volume: Ints, placement: str = "uniform", row_ticks: int = 1
) -> Profile:
    """Return the profile of all these bars [bars], which may be of several sessions; prices in ticks, above 0."""
    bottom = int(low.min())
    base = bottom // row_ticks * row_ticks
    placed = spread(low, high, close, volume, placement)
    moved = type(placed)(placed.low - base, placed.high - base, placed.share, placed.run - base, placed.left)
    rows = int(high.max()) // row_ticks - base // row_ticks + 1
    ticks = histograms(moved, np.zeros(len(low), dtype=np.int64), (1, rows * row_ticks))
    return Profile(base, ticks.reshape(rows, row_ticks).sum(axis=1), row_ticks)


def levels_of(profile: Profile, value_area: str = "two_row") -> Levels:
    """Return the levels of `profile`, arrays of one element; prices in ticks, each the lowest of its row."""
    ends = np.zeros(1, dtype=np.int64), np.array([len(profile.volume) - 1])
    found = find_levels(profile.volume[None, :], *ends, np.zeros(1, dtype=np.int64), value_area)
    prices = {name: profile.base + getattr(found, name) * profile.row_ticks for name in ("vpoc", "vah", "val")}
    return Levels(**prices, vpoc_volume=found.vpoc_volume, area_volume=found.area_volume, volume=found.volume)
