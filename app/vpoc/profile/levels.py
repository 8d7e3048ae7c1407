"""VPOC and value area of many histograms at once."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vpoc.arrays import Flags, Ints, SmallInts

VALUE_AREA = (7, 10)
"""The value area has at least 7/10 of the volume; a ratio of integers, so that rounding decides nothing."""
METHODS = {"two_row": 2, "one_row": 1}
"""Rows that the value area grows by at a time."""
CROWDED = 0.75
"""Share of the profiles that must still be growing; below it, the finished ones are removed from the arrays."""
PADDING = 4
"""Columns of zeros on each side of a histogram, so that code which looks at neighbours needs no special cases."""


@dataclass(frozen=True)
class Levels:
    """Levels of profiles; every array is [profiles]. Prices in ticks, volumes in contracts.

    `vpoc_volume`: at the VPOC. `area_volume`: in VAL..VAH. `volume`: of the whole profile.
    """

    vpoc: Ints
    vah: Ints
    val: Ints
    vpoc_volume: Ints
    area_volume: Ints
    volume: Ints


@dataclass(frozen=True)
class LevelSearch:
    """Profiles of which everything but the value area is known.

    Every array but `gains` is [profiles]; column numbers include the padding. `gains`: those of all profiles, each
    `widths` long, concatenated; see `value_area_gains`.
    """

    vpoc: Ints
    at_vpoc: Ints
    volume: Ints
    first: Ints
    last: Ints
    origin: Ints
    widths: Ints
    gains: SmallInts

    @staticmethod
    def of(histogram: SmallInts, first: Ints, last: Ints, base: Ints, method: str) -> "LevelSearch":
        """Start a search in `histogram` [profiles, columns] from column `first` to `last` [profiles].

        Those columns exist; see `find_levels`.
        """
        padded = np.pad(histogram, ((0, 0), (PADDING, PADDING)))
        count, width = padded.shape
        first, last = first + PADDING, last + PADDING
        vpoc = find_vpoc(padded, first, last)
        gains = value_area_gains(padded.reshape(-1), within(first, last, width).reshape(-1), method)
        volume = histogram.sum(axis=1, dtype=np.int64)
        at_vpoc = padded[np.arange(count), vpoc].astype(np.int64)
        return LevelSearch(vpoc, at_vpoc, volume, first, last, base - PADDING, np.full(count, width), gains)

    def levels(self, method: str) -> Levels:
        """Return the levels, with prices in ticks."""
        bottom, top, held = self._value_area(METHODS[method])
        origin = self.origin
        return Levels(origin + self.vpoc, origin + top, origin + bottom, self.at_vpoc, held, self.volume)

    def _value_area(self, step: int) -> tuple[Ints, Ints, Ints]:
        """Lowest and highest column [profiles] of the value area, and the volume in it.

        From the VPOC, the next two rows above (one when only one is left) are compared with the next two below, and the
        larger pair is added, above on a tie, until the area holds 7/10 of the volume (`step` 2: Dalton, Mind over
        Markets; CBOT); `step` 1 compares single rows. A side with no rows left counts as -1, so that an empty row,
        which is 0, wins against it.
        """
        gains, starts = self.gains, np.cumsum(self.widths) - self.widths
        target, held = area_target(self.volume), self.at_vpoc.copy()
        # Positions in `gains` of the next rows on each side.
        above, below = starts + self.vpoc + 1, starts + self.vpoc - step
        places = np.flatnonzero(held < target)
        while len(places):
            goal, got, up, down = target[places], held[places], above[places], below[places]
            while True:
                # Finished profiles stay in the arrays until there are many, because removing them each time costs more.
                growing = got < goal
                if np.count_nonzero(growing) < CROWDED * len(places):
                    break
                gain_up, gain_down = gains[up], gains[down]
                higher = gain_up >= gain_down
                got += np.maximum(gain_up, gain_down) * growing
                up += step * (higher & growing)
                down -= step * (~higher & growing)
            above[places], below[places], held[places] = up, down, got
            places = places[growing]
        # A last step to a single row goes one row too far.
        return np.maximum(below + step - starts, self.first), np.minimum(above - 1 - starts, self.last), held


def find_levels(histogram: SmallInts, first: Ints, last: Ints, base: Ints, method: str = "two_row") -> Levels:
    """Return levels of `histogram` [profiles, columns], whose ticks first..last [profiles] exist; the rest is padding.

    Column 0 of profile i is the price base[i], in ticks. Padding must be 0. See `find_vpoc` and `LevelSearch`.
    """
    return LevelSearch.of(histogram, first, last, base, method).levels(method)


def area_target(volume: Any) -> Any:
    """Volume that the value area holds at least, of profiles with `volume`: arrays of numpy, or of torch, in int64."""
    part, whole = VALUE_AREA
    # ceil(part * volume / whole) without forming part * volume, which could overflow.
    return part * (volume // whole) - (-part * (volume % whole)) // whole


def within(low: Ints, high: Ints, columns: int) -> Flags:
    """Return the flags [rows, columns] of the columns in low..high [rows]."""
    kind = np.int16 if columns < 2**15 else np.int64
    column = np.arange(columns, dtype=kind)
    inside: Flags = (column >= low.astype(kind)[:, None]) & (column <= high.astype(kind)[:, None])
    return inside


def find_vpoc(histogram: SmallInts, first: Ints, last: Ints) -> Ints:
    """Return the column [profiles] of the largest volume.

    On a tie it is the one nearest the middle of first..last, then the lower. `histogram` [profiles, columns] is 0
    outside first..last.
    """
    peak = histogram.max(axis=1, keepdims=True)
    tied = histogram == peak
    vpoc: Ints = tied.argmax(axis=1)
    highest = histogram.shape[1] - 1 - tied[:, ::-1].argmax(axis=1)
    several = np.flatnonzero(vpoc != highest)
    if len(several):
        columns = np.arange(histogram.shape[1])
        inside = within(first[several], last[several], histogram.shape[1])
        from_middle = np.abs(2 * columns - (first + last)[several, None])
        vpoc[several] = np.where(tied[several] & inside, from_middle, np.iinfo(np.int64).max).argmin(axis=1)
    return vpoc


def value_area_gains(flat: SmallInts, exists: Flags, method: str = "two_row") -> SmallInts:
    """Return the gain of a value area by a step to the rows that begin in each column; -1 where no row is left.

    `flat`: concatenated histograms, with at least four columns of zeros between them; `exists`: flags of the columns
    that are no padding.
    """
    if METHODS[method] == 1:
        return np.where(exists, flat, -1)
    pairs = np.empty_like(flat)
    np.add(flat[:-1], flat[1:], out=pairs[:-1])
    # If one row is left, its neighbour is padding, which is 0.
    left = exists.copy()
    left[:-1] |= exists[1:]
    left[-1] = False
    np.copyto(pairs, -1, where=~left)
    return pairs
