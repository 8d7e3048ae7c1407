"""High and low volume nodes (HVN, LVN): the peaks of a smoothed profile, and the valleys between them."""

import numpy as np

from vpoc.arrays import Flags, Ints, SmallInts
from vpoc.profile.levels import PADDING, within

Nodes = tuple[Ints, Ints]
"""The columns where the HVN and the LVN begin, in order."""


def smooth(flat: SmallInts) -> SmallInts:
    """Return `flat` weighted by 1 2 3 4 5 4 3 2 1; 0 at the four values at each end, which must be 0 themselves."""
    # The triangle is a box of five applied twice.
    pairs = flat[:-1] + flat[1:]
    five = pairs[:-3] + pairs[2:-1] + flat[4:]
    pairs = five[:-1] + five[1:]
    smoothed = np.zeros_like(flat)
    np.add(pairs[:-3] + pairs[2:-1], five[4:], out=smoothed[PADDING:-PADDING])
    return smoothed


def nodes_of(volume: Ints) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return rows of the HVN and of the LVN of one profile [rows], from below; the middle row if a node has several.

    An HVN is a local maximum of the smoothed profile of at least half its peak; an LVN a local minimum of at most a
    quarter of it, with an HVN somewhere below and above.
    """
    flat = np.pad(volume, PADDING)
    ends = np.array([PADDING]), np.array([PADDING + len(volume) - 1])
    smoothed = smooth(flat)
    high, low = _nodes(smoothed, *ends, within(*ends, len(flat))[0], len(flat))
    return _middles(smoothed, high), _middles(smoothed, low)


def count_nodes(flat: SmallInts, first: Ints, last: Ints, exists: Flags, width: int) -> tuple[Ints, Ints]:
    """Return the numbers of HVN and LVN [profiles] of concatenated histograms, each `width` columns with its padding.

    `first`, `last` [profiles]: positions in `flat` of their first and last tick; `exists`: flags of the columns
    between.
    """
    high, low = _nodes(smooth(flat), first, last, exists, width)
    size = len(first)
    return np.bincount(high // width, minlength=size), np.bincount(low // width, minlength=size)


def _nodes(smoothed: SmallInts, first: Ints, last: Ints, exists: Flags, width: int) -> Nodes:
    peak = smoothed.reshape(-1, width).max(axis=1).astype(np.int64)
    # Step i goes from column i - 1 to i. Columns that do not exist are lower than all that do.
    up, down = np.empty_like(exists), np.empty_like(exists)
    np.greater(smoothed[1:], smoothed[:-1], out=up[1:])
    np.less(smoothed[1:], smoothed[:-1], out=down[1:])
    up[first], down[first] = True, False
    up[last + 1], down[last + 1] = False, True
    # Step i + 1 leaves column i.
    rising, falling = np.append(up[1:], False), np.append(down[1:], False)
    level = np.unique(np.flatnonzero(exists & ~(up | down)) // width)
    if len(level):
        _out_of_plateaus(up.reshape(-1, width), down.reshape(-1, width), level, rising, falling)
    profile, column = _where(up & falling & exists, width)
    tall = (2 * smoothed[column].astype(np.int64) >= peak[profile]) & (peak[profile] > 0)
    high, owner = column[tall], profile[tall]
    lowest, highest = np.full(len(first), len(exists)), np.full(len(first), -1)
    # The last value written stays, so write in reverse for the lowest.
    lowest[owner[::-1]] = high[::-1]
    highest[owner] = high
    profile, column = _where(down & rising & exists, width)
    deep = 4 * smoothed[column].astype(np.int64) <= peak[profile]
    return high, column[deep & (column > lowest[profile]) & (column < highest[profile])]


def _out_of_plateaus(up: Flags, down: Flags, level: Ints, rising: Flags, falling: Flags) -> None:
    """Set in `rising` and `falling`, for the profiles `level`, how the plateau that begins at a column is left.

    `up`, `down` [profiles, columns]: the steps into each column.
    """
    width = up.shape[1]
    up, down = up[level], down[level]
    changes = np.where(up | down, np.arange(width), width - 1)
    following = np.minimum.accumulate(changes[:, ::-1], axis=1)[:, ::-1][:, 1:]
    rising.reshape(-1, width)[level, :-1] = np.take_along_axis(up, following, axis=1)
    falling.reshape(-1, width)[level, :-1] = np.take_along_axis(down, following, axis=1)


def _where(flags: Flags, width: int) -> tuple[Ints, Ints]:
    """Return the profile and the position of each flag that is set."""
    column = np.flatnonzero(flags)
    return column // width, column


def _middles(smoothed: SmallInts, starts: Ints) -> tuple[int, ...]:
    """Return the rows in the middle of each plateau that begins in `starts`, the lower of two."""
    ends = np.flatnonzero(np.diff(smoothed[: len(smoothed) - PADDING], append=-1))
    return tuple(int(place) - PADDING for place in (starts + ends[np.searchsorted(ends, starts)]) // 2)
