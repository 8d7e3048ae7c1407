"""A CSV file as a polars frame of text columns, and its columns as numbers; errors name file and line."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from vpoc.data.columns import YEARS
from vpoc.errors import UserError
from vpoc.files import sha256

HEADER_LINES = 1
MAX_VOLUME = 10**12
"""No market has traded this many contracts in a bar; sums of a session stay far below 2^63."""


@dataclass(frozen=True)
class Table:
    """A file with a header: `frame` has one text column per header name (lower case), in file order.

    `newline_at_end`: the last line is ended, which a file cut short seldom has. `rows_before`: rows of the file that
    stand before those of `frame`.
    """

    path: Path
    sha256: str
    frame: pl.DataFrame
    newline_at_end: bool
    rows_before: int = 0

    def line(self, row: int) -> str:
        """Where row `row` (from 0) stands, for an error message."""
        return f"{self.path}, line {self.rows_before + row + 1 + HEADER_LINES}"


def parse_table(path: Path, content: bytes, rows_before: int = 0) -> Table:
    """The table in `content`, which is the header of `path` and its rows from `rows_before` on, without blank ones.

    UserError when it is not text, not well-formed, or has no rows.
    """
    if b"\0" in content:
        raise UserError(f"{path}: this is not a text file; give a CSV file")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1 + rows_before
        raise UserError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8 CSV") from error
    _require_different_names(path, content)
    try:
        frame = pl.read_csv(io.BytesIO(_without_blank_end(content)), infer_schema=False)
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a well-formed CSV file ({reason}); export it again") from error
    if frame.height == 0:
        raise UserError(f"{path}: there is a header but no rows; give a file with bars")
    frame.columns = [name.strip().lower() for name in frame.columns]
    return Table(path, sha256(content), frame, content.endswith((b"\n", b"\r")), rows_before)


def _require_different_names(path: Path, content: bytes) -> None:
    """UserError when two columns have one name; polars would give the second another."""
    header = content.lstrip(b"\r\n").partition(b"\n")[0].decode("utf-8-sig")
    names = [name.strip(' "\r').lower() for name in header.split(",")]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: a column name appears twice in the header ({', '.join(names)}); remove one")


def _without_blank_end(content: bytes) -> bytes:
    """`content` without blank lines at its end; the same object when there are none, since files are large."""
    tail = content[-2:].replace(b"\r", b"\n")
    return content.rstrip() + b"\n" if tail.isspace() else content


def require_columns(table: Table, needed: Sequence[str]) -> None:
    """UserError naming the columns that are missing and those that are there."""
    missing = [name for name in needed if name not in table.frame.columns]
    if missing:
        there = ", ".join(table.frame.columns)
        raise UserError(
            f"{table.path}: missing column(s) {', '.join(missing)}; there are: {there}; needed: {', '.join(needed)}"
        )


def require_years(table: Table, column: str, stamps: pl.Series) -> None:
    """UserError, with the line, when one of `stamps` [rows], dates or times made of `column`, is not in 1980..2100."""
    first, last = YEARS
    wrong = ~stamps.dt.year().is_between(first, last)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        shown = table.frame[column][row]
        raise UserError(
            f"{table.line(row)}: {column} is {shown!r}, not in the years {first} to {last}; correct the row"
        )


def numbers(table: Table, column: str, *, empty: float | None = None) -> npt.NDArray[np.float64]:
    """`column` as float64 [rows]; an empty cell becomes `empty`, or is an error when that is None.

    UserError, with the line, on text that is no number, NaN and infinity.
    """
    text = table.frame[column].str.strip_chars()
    parsed = text.cast(pl.Float64, strict=False)
    blank = (text.is_null() | (text == "")).to_numpy()
    values: npt.NDArray[np.float64] = parsed.fill_null(np.nan).to_numpy()
    bad = ~np.isfinite(values) & (~blank if empty is not None else True)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        shown = repr(text[row]) if text[row] else "an empty cell"
        raise UserError(f"{table.line(row)}: {column} is {shown}, not a number; correct or remove the row")
    if empty is None:
        return values
    return np.where(blank, empty, values)


def volumes(table: Table) -> npt.NDArray[np.int64]:
    """The `volume` column as int64 [rows], contracts; UserError, with the line, unless whole, from 0 to 10^12."""
    values = numbers(table, "volume")
    for bad, what in (
        (values < 0, "is negative"),
        (values != np.rint(values), "is not a whole number"),
        (values > MAX_VOLUME, "is more than any market trades"),
    ):
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            shown = table.frame["volume"][row]
            raise UserError(f"{table.line(row)}: volume {shown} {what}; correct or remove the row")
    return values.astype(np.int64)


def contracts(table: Table) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Which symbol each row has [rows], and the symbols in order of appearance; none without such a column.

    UserError, with the line, where the symbol is empty in some rows only.
    """
    if "symbol" not in table.frame.columns:
        return np.zeros(table.frame.height, dtype=np.int64), ()
    column = table.frame["symbol"].str.strip_chars().fill_null("")
    symbols = column.unique(maintain_order=True).to_list()
    if symbols == [""]:
        return np.zeros(table.frame.height, dtype=np.int64), ()
    if "" in symbols:
        row = int((column == "").arg_max() or 0)
        raise UserError(
            f"{table.line(row)}: the symbol is empty, but not in every row; fill it in or remove the column"
        )
    order = {symbol: place for place, symbol in enumerate(symbols)}
    return column.replace_strict(order, return_dtype=pl.Int64).to_numpy(), tuple(symbols)
