"""A merged CSV -> Bars: as fast as the file can be read, and with the line of whatever is wrong with it."""

import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Flags, Floats, Ints
from vpoc.data.bars import COLUMNS, MAX_TICKS, Bars, Problem, exact_duplicates, grid_problem, made_bars, problems
from vpoc.data.columns import PRICES, REQUIRED, STAMP_FORMAT, TICK, YEARS
from vpoc.data.compiled import Plain
from vpoc.data.content import Content, plain_bars, plain_header, read_content
from vpoc.data.sessions import session_dates
from vpoc.data.text_table import (
    MAX_VOLUME,
    Table,
    contracts,
    numbers,
    parse_table,
    require_columns,
    require_years,
    volumes,
)
from vpoc.errors import UserError, from_os_error

BLOCK_BYTES = 1 << 25
HEADER_BYTES = 4096
TYPES = {
    "ts": pl.String,
    **dict.fromkeys(PRICES, pl.Float64),
    "volume": pl.Int64,
    "vix": pl.Float64,
    "symbol": pl.String,
}
EARLIEST, LATEST = (int(np.datetime64(f"{year}-01-01", "s").astype(np.int64)) for year in (YEARS[0], YEARS[1] + 1))


def load_bars(path: Path, content: Future[Content] | None = None) -> Bars:
    """Read a merged CSV for training; exact duplicates are dropped. `content`: of `path`, if it is being read already.

    UserError, in one line with the line number, on the first rule that is broken.
    """
    held = content.result() if content else read_content(path)
    read = held.plain or _other(path, held.content, 0)
    bars = read.bars if read.sound else _checked(read.bars, 0)
    return replace(bars, sha256=held.sha256)


def stream_bars(path: Path, block_bytes: int | None = None) -> Iterator[Bars]:
    """Read a merged CSV in blocks of whole sessions, a few hundred MB in memory whatever its size.

    `block_bytes`: what to read at a time, by default BLOCK_BYTES; a block holds at least one session.
    `rows_in_file` and `sha256` of the last block are of the whole file.
    UserError as `load_bars`.
    """
    left: Bars | None = None
    off_grid: list[Flags] = []
    for content, first_row, digest in _blocks(path, block_bytes or BLOCK_BYTES):
        read = plain_bars(path, content) or _other(path, content, first_row)
        fresh = replace(read.bars, sha256=digest)
        off_grid.append(fresh.off_grid)
        bars = fresh if left is None else _joined(left, fresh)
        # What is left was looked at before.
        if not read.sound or (left is not None and left.ts[-1] >= fresh.ts[0]):
            bars = _checked(bars, first_row - (0 if left is None else len(left)), whole=False)
        bars = replace(bars, rows_in_file=first_row + fresh.rows_in_file)
        date = session_dates(bars.ts)
        whole = int(np.searchsorted(date, date[-1]))
        left = bars.take(slice(whole, None))
        if whole:
            yield bars.take(slice(whole))
    if left is not None:
        _raise(left.path, grid_problem(np.concatenate(off_grid)), 0)
        yield left


def require_merged(path: Path) -> None:
    """UserError unless the header of `path` is that of a merged CSV."""
    try:
        with path.open("rb") as stream:
            header = stream.readline(HEADER_BYTES).decode("utf-8-sig", "replace")
    except OSError as error:
        raise from_os_error(error, path) from error
    names = [name.strip(' "\r\n').lower() for name in header.split(",")]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise UserError(f"{path}: not a merged CSV: no column {', '.join(missing)}; `vpoc merge` makes one")


def parse_bars(table: Table) -> Bars:
    """The columns of a merged CSV as arrays; UserError when a value cannot be read as what it should be."""
    if not table.newline_at_end:
        raise UserError(
            f"{table.line(table.frame.height - 1)}: the file does not end with a newline, so that its last line may be "
            "cut short; copy or make it again, or end the line if it is whole"
        )
    require_columns(table, REQUIRED)
    ts = _stamps(table)
    prices = {name: _price(table, name) for name in PRICES}
    contract, symbols = contracts(table)
    return made_bars(table.path, ts, prices, volumes(table), numbers(table, "vix", empty=np.nan), contract, symbols)


def _other(path: Path, content: bytes, first_row: int) -> Plain:
    """The bars of a file that is not plain."""
    header = plain_header(content)
    bars = _regular(path, content, header) if header else None
    return Plain(bars or parse_bars(parse_table(path, content, first_row)), sound=False)


def _regular(path: Path, content: bytes, header: Sequence[str]) -> Bars | None:
    """The bars of a file in which everything is as it should be; None when something is not: it is then looked for."""
    if b"\0" in content:
        return None
    try:
        frame = pl.read_csv(io.BytesIO(content), schema={name: TYPES[name] for name in header})
        ts = frame["ts"].str.to_datetime(STAMP_FORMAT, time_unit="us").dt.epoch("s")
    except pl.exceptions.PolarsError:
        return None
    if not frame.height or ts.null_count() or any(frame[name].null_count() for name in (*PRICES, "volume")):
        return None
    stamps, volume, vix = ts.to_numpy(), frame["volume"].to_numpy(), frame["vix"]
    prices = {name: frame[name].to_numpy() for name in PRICES}
    if not (stamps.min() >= EARLIEST and stamps.max() < LATEST and volume.min() >= 0 and volume.max() <= MAX_VOLUME):
        return None
    # A comparison with NaN is false.
    if not all(abs(bound) <= MAX_TICKS * TICK for p in prices.values() for bound in (p.min(), p.max())):
        return None
    if vix.is_infinite().any() or vix.is_nan().any():
        return None
    if "symbol" in header:
        symbols = frame["symbol"].unique(maintain_order=True)
        if len(symbols) > 1 or symbols[0] is None or symbols[0] != symbols[0].strip():
            return None
        known: tuple[str, ...] = (symbols[0],)
    else:
        known = ()
    return made_bars(path, stamps, prices, volume, vix.fill_null(np.nan).to_numpy(), np.zeros_like(stamps), known)


def _checked(bars: Bars, first_row: int, *, whole: bool = True) -> Bars:
    """`bars` without exact duplicates; UserError on the first rule that is broken."""
    found = problems(bars, whole=whole)
    _raise(bars.path, found[0] if found else None, first_row)
    return _distinct(bars)


def _raise(path: Path, problem: Problem | None, first_row: int) -> None:
    if problem is not None:
        line = first_row + problem.first_row + 2
        raise UserError(f"{path}, line {line}: {problem.name} ({problem.rows} rows); {problem.advice}")


def _distinct(bars: Bars) -> Bars:
    """Without exact duplicates; two trades may well be alike."""
    repeated = exact_duplicates(bars) if bars.bar_seconds else np.zeros(1, dtype=np.bool_)
    return bars.take(~repeated) if repeated.any() else bars


def _joined(before: Bars, after: Bars) -> Bars:
    if bool(before.symbols) != bool(after.symbols):
        raise UserError(f"{after.path}: the symbol is empty, but not in every row; fill it in or remove the column")
    symbols = tuple(dict.fromkeys([*before.symbols, *after.symbols]))
    moved = np.array([symbols.index(symbol) for symbol in after.symbols] or [0])
    after = replace(after, contract=moved[after.contract])
    columns: dict[str, Any] = {name: np.concatenate([getattr(before, name), getattr(after, name)]) for name in COLUMNS}
    return replace(after, symbols=symbols, bar_seconds=before.bar_seconds, **columns)


def _blocks(path: Path, size: int) -> Iterator[tuple[bytes, int, str]]:
    """Parts of the file that end with a line, each under the header, and the rows before it.

    With the last comes the SHA-256 of the file.
    """
    digest = hashlib.sha256()
    header, left, rows = b"", b"", 0
    held: tuple[bytes, int] | None = None
    try:
        with path.open("rb") as stream:
            while block := stream.read(size):
                digest.update(block)
                if not header:
                    header, newline, block = block.partition(b"\n")
                    header += newline
                lines, newline, rest = (left + block).rpartition(b"\n")
                # Blank lines at the end of a file are no rows.
                if lines.strip():
                    if held is not None:
                        yield *held, ""
                    held = header + lines + newline, rows
                rows += lines.count(b"\n") + len(newline)
                left = rest
    except OSError as error:
        raise from_os_error(error, path) from error
    if not header:
        raise UserError(f"{path}: the file is empty; give a file with data")
    if held is not None and left.strip():
        yield *held, ""
    yield *((header + left, rows) if held is None or left.strip() else held), digest.hexdigest()


def _price(table: Table, name: str) -> Floats:
    values = numbers(table, name)
    absurd = np.abs(values) > MAX_TICKS * TICK
    if absurd.any():
        row = int(np.flatnonzero(absurd)[0])
        raise UserError(f"{table.line(row)}: {name} is beyond any price; correct or remove the row")
    return values


def _stamps(table: Table) -> Ints:
    parsed = table.frame["ts"].str.to_datetime(STAMP_FORMAT, time_unit="us", strict=False)
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        shown = table.frame["ts"][row]
        raise UserError(
            f"{table.line(row)}: ts is {shown!r}, not like 2018-01-02T14:30:00Z; `vpoc merge` writes this format"
        )
    require_years(table, "ts", parsed)
    seconds: Ints = parsed.dt.epoch("s").to_numpy()
    return seconds
