"""Time at price: TPO profiles of 30-minute brackets (Dalton, Mind over Markets)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vpoc.arrays import Flags, Ints, SmallInts
from vpoc.profile.levels import within

BRACKET_SECONDS = 1800


@dataclass(frozen=True)
class TimeFacts:
    """Facts of TPO profiles; every array is [profiles].

    `tpoc`: column of the TPO point of control.
    `single`: rows of one TPO between rows of more.
    `tail_hi`, `tail_lo`: the length of the run of rows with one TPO from the top, and from the bottom.
    `poor_hi`, `poor_lo`: whether the extreme row has 2 TPO or more.
    """

    tpoc: Ints
    single: Ints
    tail_hi: Ints
    tail_lo: Ints
    poor_hi: Flags
    poor_lo: Flags


def developing_tpo(inside: Flags, bracket: Ints) -> SmallInts:
    """Return the TPO [bars, columns] of the bars up to and including each, of a small type.

    `inside` [bars, columns]: flags of the ticks in each bar's range; `bracket` [bars] never decreases.
    """
    edges = np.concatenate([[0], np.flatnonzero(np.diff(bracket)) + 1])
    sizes = np.diff(edges, append=len(bracket))
    kind: Any = np.int8 if len(edges) < 2**7 else np.int64
    # A tick was traded in a bracket if more bars up to now have it than bars up to the bracket's begin.
    held = np.zeros((len(inside) + 1, inside.shape[1]), dtype=np.int16 if len(inside) < 2**15 else np.int64)
    np.cumsum(inside, axis=0, out=held[1:])
    traded = held[1:] > np.repeat(held[edges], sizes, axis=0)
    whole = traded[edges + sizes - 1]
    before = np.cumsum(whole, axis=0, dtype=kind) - whole
    count: SmallInts = np.repeat(before, sizes, axis=0)
    count += traded
    return count


def session_tpo(low: Ints, high: Ints, bracket: Ints, row: Ints, shape: tuple[int, int]) -> Ints:
    """Return the TPO [rows, columns] of all the bars of each `row` [bars]; `shape` is (rows, columns)."""
    brackets = int(bracket.max()) + 1
    width = shape[1] + 1
    steps = np.zeros(shape[0] * brackets * width, dtype=np.int32)
    origin = (row * brackets + bracket) * width
    np.add.at(steps, origin + low, 1)
    np.subtract.at(steps, origin + high + 1, 1)
    traded = np.cumsum(steps.reshape(shape[0], brackets, width), axis=2)[:, :, :-1] > 0
    count: Ints = traded.sum(axis=1)
    return count


def time_facts(tpo: SmallInts, first: Ints, last: Ints, exists: Flags) -> TimeFacts:
    """Return facts of TPO profiles [profiles, columns], 0 outside first..last; `exists`: flags of the columns between.

    The point of control is the row with most TPO; on a tie the one nearest the middle of first..last, then the lower.
    """
    columns = tpo.shape[1]
    each = np.arange(len(tpo))
    many, single = tpo >= 2, tpo == 1
    lowest = many.argmax(axis=1)
    highest = columns - 1 - many[:, ::-1].argmax(axis=1)
    some = many[each, lowest]
    count = np.count_nonzero(single & within(lowest, highest, columns), axis=1)
    kind: Any = np.int16 if columns < 2**14 else np.int64
    from_middle = np.abs(2 * np.arange(columns, dtype=kind) - (first + last).astype(kind)[:, None])
    tied = (tpo == tpo.max(axis=1)[:, None]) & exists
    tpoc = np.where(tied, from_middle, np.iinfo(kind).max).argmin(axis=1)
    # Tails end at the first row with another number of TPO.
    ends = ~single & exists
    bottom, top = ends.argmax(axis=1), columns - 1 - ends[:, ::-1].argmax(axis=1)
    ended = ends[each, bottom]
    rows = last - first + 1
    return TimeFacts(
        tpoc=tpoc,
        single=np.where(some, count, 0),
        tail_hi=np.where(ended, last - top, rows),
        tail_lo=np.where(ended, bottom - first, rows),
        poor_hi=many[each, last],
        poor_lo=many[each, first],
    )
