"""VPOC and value area of many histograms at once."""

from dataclasses import dataclass, fields

import numpy as np

from vpoc.data.bars import Ints

VALUE_AREA = (7, 10)
"""The value area holds at least 7/10 of the volume; a ratio of integers, so that no rounding decides."""


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

    @staticmethod
    def concatenate(parts: "list[Levels]") -> "Levels":
        """The profiles of all `parts`, in order."""
        return Levels(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Levels)})

    def take(self, profiles: Ints) -> "Levels":
        """The profiles with these indices."""
        return Levels(**{f.name: getattr(self, f.name)[profiles] for f in fields(Levels)})


def find_levels(histogram: Ints, first: Ints, last: Ints, base: Ints) -> Levels:
    """Levels of `histogram` [profiles, columns], whose ticks first..last [profiles] exist; the rest is padding.

    Column 0 of profile i is the price base[i], in ticks. Padding must be 0. See `find_vpoc` and `two_row_area`.
    """
    vpoc = find_vpoc(histogram, first, last)
    below = np.zeros((histogram.shape[0], histogram.shape[1] + 1), dtype=np.int64)
    np.cumsum(histogram, axis=1, out=below[:, 1:])
    bottom, top = two_row_area(below, first, last, vpoc)
    each = np.arange(len(histogram))
    return Levels(
        vpoc=base + vpoc,
        vah=base + top,
        val=base + bottom,
        vpoc_volume=histogram[each, vpoc],
        area_volume=below[each, top + 1] - below[each, bottom],
        volume=below[:, -1].copy(),
    )


def find_vpoc(histogram: Ints, first: Ints, last: Ints) -> Ints:
    """Column [profiles] of the largest volume; on a tie the one nearest the middle of first..last, then the lower."""
    columns = np.arange(histogram.shape[1])
    peak = histogram.max(axis=1, keepdims=True)
    tied = (histogram == peak) & (columns >= first[:, None]) & (columns <= last[:, None])
    vpoc: Ints = tied.argmax(axis=1)
    several = np.flatnonzero(np.count_nonzero(tied, axis=1) > 1)
    from_middle = np.abs(2 * columns - (first + last)[several, None])
    vpoc[several] = np.where(tied[several], from_middle, np.iinfo(np.int64).max).argmin(axis=1)
    return vpoc


def two_row_area(below: Ints, first: Ints, last: Ints, vpoc: Ints) -> tuple[Ints, Ints]:
    """Lowest and highest column [profiles] of the value area by the two-row rule (Dalton, Mind over Markets; CBOT).

    `below` [profiles, columns + 1] is the volume below each column. From the VPOC, the next two rows above (one when
    only one is left) are compared with the next two below, and the larger pair is added, above on a tie, until the area
    holds 7/10 of the volume. A side with no rows left counts as -1, so that an empty row, which is 0, wins against it.
    """
    bottom, top = vpoc.copy(), vpoc.copy()
    part, whole = VALUE_AREA
    total = below[:, -1]
    # ceil(part * total / whole) without forming part * total, which could overflow.
    target = part * (total // whole) - (-part * (total % whole)) // whole
    each = np.arange(len(below))
    open_ = each[below[each, top + 1] - below[each, bottom] < target]
    while len(open_):
        t, b = top[open_], bottom[open_]
        at_top, at_bottom = below[open_, t + 1], below[open_, b]
        above = np.minimum(t + 2, last[open_])
        under = np.maximum(b - 2, first[open_])
        gain_above = np.where(above > t, below[open_, above + 1] - at_top, -1)
        gain_under = np.where(under < b, at_bottom - below[open_, under], -1)
        up = gain_above >= gain_under
        top[open_] = np.where(up, above, t)
        bottom[open_] = np.where(up, b, under)
        gained = at_top - at_bottom + np.where(up, gain_above, gain_under)
        open_ = open_[gained < target[open_]]
    return bottom, top
