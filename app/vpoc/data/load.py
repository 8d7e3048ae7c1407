"""Reads a merged CSV, or any file of bars with VIX, into the Bars that training uses; errors name the line."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vpoc.arrays import Flags
from vpoc.data.bars import Bars, bar_seconds, exact_duplicates
from vpoc.data.exchange.sessions import session_dates
from vpoc.data.merged_csv import UNENDED, MergedRows, read_parts
from vpoc.data.merged_head import Head, find_head, require_head
from vpoc.data.rules import ROW_ADVICE, SYMBOL_MISSING, first_problem, grid_problem
from vpoc.errors import UserError

LARGE_BYTES = 1 << 28
"""Size in bytes above which a file is read in blocks, if the caller can work with blocks."""
UNENDED_ADVICE = "copy or make it again, or end the line if it is whole"


def load_bars(path: Path) -> Bars:
    """Read a merged CSV for training; exact duplicates are dropped.

    UserError, in one line with the line number, for the first rule that is broken.
    """
    (bars,) = _checked_parts(path, None, at_once=True)
    return bars


def stream_bars(path: Path, block_bytes: int | None = None) -> Iterator[Bars]:
    """Read a merged CSV of any size in blocks of whole sessions, using a few hundred MB of memory.

    `block_bytes`: bytes to read at a time, by default BLOCK_BYTES; a block has at least one session. `rows_in_file` and
    `sha256` of the last block refer to the whole file. UserError as from `load_bars`.
    """
    left: Bars | None = None
    for fresh in _checked_parts(path, block_bytes):
        bars = fresh if left is None else Bars.concatenate((left, fresh))
        date = session_dates(bars.ts)
        whole = int(np.searchsorted(date, date[-1]))
        left = bars.take(slice(whole, None))
        if whole:
            yield bars.take(slice(whole))
    if left is not None:
        yield left


@dataclass
class _Reading:
    """A merged CSV that is being read, and what is known from the parts read so far.

    `symbols`: the number of each contract.
    `above`: the last row.
    `named`: whether rows have a symbol.
    `off_grid`: flags of each part.
    """

    head: Head
    symbols: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    above: Bars | None = None
    named: bool | None = None
    off_grid: list[Flags] = field(default_factory=list)

    def bars(self, part: MergedRows) -> Bars:
        """Return the bars of the next part; UserError for a line that is no bar."""
        path = self.head.path
        if part.unreadable.height:
            line, reason = part.unreadable.row(int(part.unreadable["line"].arg_min() or 0))
            raise UserError(f"{path}, line {line}: {reason}; {UNENDED_ADVICE if reason == UNENDED else ROW_ADVICE}")
        self._require_symbols(part)
        return part.bars(path, self.symbols)

    def checked(self, bars: Bars) -> Bars:
        """Return the next `bars` without exact duplicates; UserError for the first rule that is broken."""
        line = 1 + self.head.lines + self.rows
        self.rows += len(bars)
        self.off_grid.append(bars.off_grid)
        # Include the last row of the previous part, because the first row of this part is compared with it.
        given = bars if self.above is None else Bars.concatenate([self.above, bars])
        context = len(given) - len(bars)
        problem = first_problem(given)
        if problem is not None:
            raise UserError(problem.at(f"{self.head.path}, line {line - context + problem.first_row}"))
        # Two trades may legitimately be equal.
        kept = ~exact_duplicates(given) if given.bar_seconds else np.ones(len(given), dtype=np.bool_)
        kept[:context] = False
        self.above = given.take(slice(-1, None))
        named = tuple(self.symbols) if self.named else ()
        return replace(given if kept.all() else given.take(kept), symbols=named, rows_in_file=self.rows)

    def require_grid(self) -> None:
        """Raise UserError when more than 0.1 % of all rows have a price off the grid."""
        problem = grid_problem(np.concatenate(self.off_grid))
        if problem is not None:
            line = 1 + self.head.lines + problem.first_row
            raise UserError(problem.at(f"{self.head.path}, line {line}"))

    def _require_symbols(self, part: MergedRows) -> None:
        """Raise UserError unless all rows of the file have a symbol, or none has, according to its first row."""
        if part.symbol is None:
            return
        empty = (part.symbol == "").to_numpy()
        if self.named is None:
            self.named = not empty[0]
        if (empty if self.named else ~empty).any():
            line = part.line[np.argmax(empty)] if self.named else 1 + self.head.lines
            raise UserError(f"{self.head.path}, line {line}: {SYMBOL_MISSING}")


def _checked_parts(path: Path, size: int | None, *, at_once: bool = False) -> Iterator[Bars]:
    """Yield the bars of the file in parts, or, with `at_once`, as one; the last part has the SHA-256 of the file.

    A file with other column names for VIX, or with stamps of another form, is read all at once.
    """
    head = find_head(path)
    if head is None:
        # Imported here because only other files need these readers, and, with a cache, no file is parsed at all.
        from vpoc.data.merge import bars_with_vix  # noqa: PLC0415
        from vpoc.data.readers.delimited import has_vix_column  # noqa: PLC0415

        if has_vix_column(path):
            yield bars_with_vix(path)
            return
    head = head or require_head(path)
    digest = hashlib.sha256()
    reading = _Reading(head)
    parts = (reading.bars(part) for part in read_parts(head, size, digest))
    held: Bars | None = None
    for bars in _as_one(parts) if at_once else parts:
        if held is not None:
            yield held
        held = reading.checked(bars)
    if held is None:
        raise UserError(f"{path}: there is a header but no rows; give a file with bars")
    reading.require_grid()
    yield replace(held, sha256=digest.hexdigest())


def _as_one(parts: Iterable[Bars]) -> Iterator[Bars]:
    """Yield the bars of all `parts` together; nothing if there are no parts."""
    found = list(parts)
    if len(found) > 1:
        bars = Bars.concatenate(found)
        trades = np.array_equal(bars.high, bars.low)
        found = [replace(bars, bar_seconds=0 if trades else bar_seconds(bars.ts))]
    yield from found
