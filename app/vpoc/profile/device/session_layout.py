"""The RTH bars of a chunk of sessions as columns of a padded matrix, which go to the device."""

from dataclasses import dataclass

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.data.sessions import Sessions
from vpoc.errors import UserError


@dataclass(frozen=True)
class SessionLayout:
    """Sessions in order; every array is [sessions].

    `start`, `stop`: rows of the Bars. `base`: lowest tick. `last`: highest tick, counted from `base`.
    """

    start: Ints
    stop: Ints
    base: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def width(self) -> int:
        """Ticks of the widest session."""
        return int(self.last.max()) + 1

    def chunks(self, size: int) -> "list[SessionLayout]":
        """The same sessions, `size` at a time."""
        parts = [slice(at, at + size) for at in range(0, len(self), size)]
        return [SessionLayout(self.start[p], self.stop[p], self.base[p], self.last[p]) for p in parts]

    def columns(self, bars: Bars) -> Ints:
        """[5, bars]: session (from 0), and low, high, close in ticks above its `base`, and volume, of every bar."""
        sizes = self.stop - self.start
        rows = _rows(self.start, sizes)
        session = np.repeat(np.arange(len(self)), sizes)
        base = self.base[session]
        prices = (column[rows] - base for column in (bars.low, bars.high, bars.close))
        return np.stack([session, *prices, bars.volume[rows]])


def layout_of(bars: Bars, sessions: Sessions) -> SessionLayout:
    """Where the sessions are and which ticks they span; UserError when a high is more than half above the low."""
    start, stop = sessions.start, sessions.stop
    sizes = stop - start
    rows = _rows(start, sizes)
    first = np.cumsum(sizes) - sizes
    base = np.minimum.reduceat(bars.low[rows], first)
    last = np.maximum.reduceat(bars.high[rows], first) - base
    if (2 * last > base).any():
        stamp = np.datetime64(int(bars.ts[start[np.argmax(2 * last > base)]]), "s")
        raise UserError(
            f"{bars.path}: the session whose regular hours start at {stamp}Z has a high more than half above its low; "
            "remove the bar with the wrong price"
        )
    return SessionLayout(start, stop, base, last)


def _rows(start: Ints, sizes: Ints) -> Ints:
    """Every row of the sessions, in order."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(start - before, sizes) + np.arange(int(sizes.sum()))
