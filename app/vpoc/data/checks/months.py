"""Cuts bars that come in blocks into calendar months, so that a judgement by month does not depend on the blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.bars import Bars
from vpoc.data.exchange.sessions import month_starts
from vpoc.errors import UserError


@dataclass(frozen=True)
class Month:
    """The rows `start`..`stop`-1 of `bars` are those of a calendar month of trade dates; some others surround them.

    `line` [rows]: the line of each bar in its file.
    `row`: the number of bars in the file before the month.
    """

    bars: Bars
    line: Ints
    start: int
    stop: int
    row: int

    @property
    def alone(self) -> tuple[Bars, Ints]:
        """Bars and lines of the month, without the surrounding ones."""
        part = slice(self.start, self.stop)
        return self.bars.take(part), self.line[part]


@dataclass
class Months:
    """Collects bars, sorted by time, until a month is complete and `around` bars follow it."""

    around: int
    held: Bars | None = None
    line: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    before: int = 0
    """Number of the bars held, at the front, that belong to a month which was yielded already."""
    row: int = 0

    def add(self, bars: Bars, line: Ints) -> Iterator[Month]:
        """Yield the months that are complete now."""
        self.held = bars if self.held is None else Bars.concatenate((self.held, bars))
        self.line = np.concatenate([self.line, line])
        starts = self._starts()
        whole = starts[starts <= len(self.held) - self.around].tolist()
        yield from self._months(whole)

    def rest(self) -> Iterator[Month]:
        """Yield the remaining months, after the last block."""
        if self.held is not None and self.before < len(self.held):
            yield from self._months([*self._starts().tolist(), len(self.held)])

    def _starts(self) -> Ints:
        assert self.held is not None
        try:
            return self.before + month_starts(self.held.ts[self.before :])
        except UserError:
            # Bars outside the calendar are refused later, when they are split into sessions.
            return np.array([self.before])

    def _months(self, borders: list[int]) -> Iterator[Month]:
        """Yield the months between `borders`; the first border is the first row that was not yielded."""
        bars, line = self.held, self.line
        assert bars is not None
        for start, stop in pairwise(borders):
            first = max(start - self.around, 0)
            part = slice(first, stop + self.around)
            yield Month(bars.take(part), line[part], start - first, stop - first, self.row)
            self.row += stop - start
        if len(borders) > 1:
            left = max(borders[-1] - self.around, 0)
            self.before = borders[-1] - left
            self.held, self.line = bars.take(slice(left, None)), line[left:]
