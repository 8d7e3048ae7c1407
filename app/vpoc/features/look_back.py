"""Features of earlier sessions as seen from a later one: composites and naked VPOCs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Flags, Floats, Ints
from vpoc.features.session_facts import SessionFacts
from vpoc.profile.levels import find_vpoc

AT_A_TIME = 32
FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Naked:
    """Naked VPOCs alive at the as-of time of each row [rows].

    `above`, `below`: their numbers.
    `up`, `down`: ticks to the nearest, a huge number if there is none.
    `age`: sessions since the nearest formed, 0 if there is none.
    """

    above: Ints
    below: Ints
    up: Ints
    down: Ints
    age: Ints


def composite_vpocs(days: SessionFacts, among: Ints, begins: Sequence[Ints], stop: Ints) -> list[Ints]:
    """Return the VPOC [rows], in ticks, of the summed RTH profiles of among[begin..stop-1], for each of `begins`.

    `among`: indices of sessions; each `begin` and `stop` [rows] never decreases.
    """
    found = [np.empty(len(stop), dtype=np.int64) for _ in begins]
    for start in range(0, len(stop), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        lowest = int(min(begin[part].min() for begin in begins))
        sessions = among[lowest : int(stop[part].max())]
        low, high = days.low[sessions], days.high[sessions]
        base = int(low.min())
        grid = np.zeros((len(sessions) + 1, int(high.max()) - base + 1), dtype=np.int64)
        for row, session in enumerate(sessions.tolist()):
            rows, at = days.histogram[session], int(low[row]) - base
            grid[row + 1, at : at + len(rows)] = rows
        np.cumsum(grid, axis=0, out=grid)
        b = stop[part] - lowest
        up_to = grid[b]
        for vpoc, begin in zip(found, begins, strict=True):
            a = begin[part] - lowest
            edges = np.stack([a, b], axis=1).reshape(-1)
            # An edge may lie behind the last session.
            first = np.minimum.reduceat(np.append(low, 0), edges)[::2] - base
            last = np.maximum.reduceat(np.append(high, 0), edges)[::2] - base
            vpoc[part] = base + find_vpoc(up_to - grid[a], first, last)
    return found


def touched_in(days: SessionFacts, farthest: int) -> Ints:
    """Return the first later session [sessions] whose RTH range has each VPOC.

    A huge number if none of the next `farthest` does.
    """
    vpoc = days.profile.levels.vpoc
    found = np.full(len(days), FAR)
    for distance in range(1, min(farthest, len(days) - 1) + 1):
        level = vpoc[:-distance]
        hit = (days.low[distance:] <= level) & (level <= days.high[distance:]) & (found[:-distance] == FAR)
        found[:-distance][hit] = np.flatnonzero(hit) + distance
    return found


def naked_levels(days: SessionFacts, rolls: Ints, row: Ints, reach: int, *, after: bool) -> tuple[Ints, Ints, Flags]:
    """Return the VPOCs that complete sessions left before each session of `row` [rows], over the last `reach` of them.

    Returns their ticks, their ages in sessions, and whether each is alive at the end of the row's RTH (`after`) or at
    its begin: in no RTH range since, of complete sessions or others, and of the same contract by `rolls` [sessions].
    All are [rows, reach], the youngest first.
    """
    forming = np.flatnonzero(days.sessions.complete)
    age = np.arange(1, reach + 1)
    column = np.searchsorted(forming, row)[:, None] - age
    session = forming[np.maximum(column, 0)]
    until = row if after else row - 1
    dead = touched_in(days, int((row[:, None] - session).max(initial=1)))
    alive = (column >= 0) & (rolls[session] == rolls[row][:, None]) & (dead[session] > until[:, None])
    return days.profile.levels.vpoc[session], np.broadcast_to(age, session.shape), alive


def naked(level: Ints, age: Ints, alive: Flags, price: Ints) -> Naked:
    """Return the levels that are alive and nearest to `price` [rows]; a level at the price is touched.

    `level`, `age` and `alive` are [rows, levels].
    """
    distance = level - price[:, None]
    over, under = alive & (distance > 0), alive & (distance < 0)
    size = np.where(over | under, np.abs(distance), FAR)
    nearest = size.min(axis=1, initial=FAR)
    youngest = np.where((size == nearest[:, None]) & (size != FAR), age, FAR).min(axis=1, initial=FAR)
    return Naked(
        above=np.count_nonzero(over, axis=1),
        below=np.count_nonzero(under, axis=1),
        up=np.where(over, distance, FAR).min(axis=1, initial=FAR),
        down=np.where(under, -distance, FAR).min(axis=1, initial=FAR),
        age=np.where(youngest == FAR, 0, youngest),
    )


def mean_of_last(values: Ints | Floats, stop: Ints, count: int) -> Floats:
    """Return the mean of values[stop-count..stop-1] for each of `stop` [rows]; for integers the sums are exact."""
    total = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    mean: Floats = (total[stop] - total[stop - count]) / count
    return mean
