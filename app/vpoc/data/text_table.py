"""Text columns of a vendor's file, and their conversion to numbers; errors name file and line."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from vpoc.data.columns import PRICES
from vpoc.data.rules import SYMBOL_MISSING
from vpoc.errors import UserError

MAX_VOLUME = 10**12
"""No market has traded this many contracts in a bar; sums over a session stay far below 2^63."""


GROUPED = r"^-?\d{1,3}(,\d{3})+(\.\d*)?$"
POINT_GROUPED = r"^-?\d{1,3}(\.\d{3})+$"
"""Numbers with thousands separated by commas, and whole numbers with thousands separated by points."""


@dataclass(frozen=True)
class Table:
    """Columns of a file as text: `frame` has one text column per name (lower case).

    `header_lines`: lines of the file above the first row.
    """

    path: Path
    frame: pl.DataFrame
    header_lines: int = 1

    def line(self, row: int) -> str:
        """Return the place of row `row` (from 0), for an error message."""
        return f"{self.path}, line {self.header_lines + row + 1}"


def without_separators(table: Table) -> Table:
    """Return `table` with numbers such as 6.820,75 or 6,820.75 written as 6820.75.

    A comma is taken as the decimal point unless, in every cell with commas, groups of three digits follow them.
    """
    frame = table.frame
    prices = frame.select(pl.col(*PRICES).str.strip_chars())
    commas = prices.select(pl.any_horizontal(pl.col(*PRICES).str.contains(",", literal=True).fill_null(value=False)))
    if not commas.to_series().any():
        return table
    grouped = prices.select(
        pl.all_horizontal((~pl.col(*PRICES).str.contains(",", literal=True)) | pl.col(*PRICES).str.contains(GROUPED))
    ).to_series()
    names = [name for name in (*PRICES, "volume", "vix") if name in frame.columns]
    cells = pl.col(*names)
    if grouped.all():
        return replace(table, frame=frame.with_columns(cells.str.replace_all(",", "", literal=True)))
    pointless = cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    # A point that is not followed by three digits is no thousands separator.
    kept = pl.when(cells.str.contains(POINT_GROUPED) | cells.str.contains(",", literal=True)).then(pointless)
    return replace(table, frame=frame.with_columns(kept.otherwise(cells)))


def numbers(table: Table, column: str, *, empty: float | None = None) -> npt.NDArray[np.float64]:
    """Return `column` as float64 [rows]; an empty cell becomes `empty`, or is an error if that is None.

    UserError, with the line, for text that is no number, NaN and infinity.
    """
    text = table.frame[column].str.strip_chars()
    parsed = text.cast(pl.Float64, strict=False)
    values: npt.NDArray[np.float64] = parsed.fill_null(np.nan).to_numpy()
    bad = ~np.isfinite(values)
    if empty is not None:
        blank = (text.is_null() | (text == "")).to_numpy()
        values, bad = np.where(blank, empty, values), bad & ~blank
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        shown = repr(text[row]) if text[row] else "an empty cell"
        raise UserError(f"{table.line(row)}: {column} is {shown}, not a number; correct or remove the row")
    return values


def volumes(table: Table) -> npt.NDArray[np.int64]:
    """Return the `volume` column as int64 [rows], in contracts.

    UserError, with the line, unless all volumes are whole numbers from 0 to 10^12.
    """
    return whole_volumes(table, numbers(table, "volume"))


def whole_volumes(table: Table, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """As `volumes`, of the `values` in that column."""
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


def symbols(table: Table) -> pl.Series | None:
    """The symbols, None when the column is missing or empty; UserError, with the line, when only some rows have one."""
    if "symbol" not in table.frame.columns:
        return None
    column = table.frame["symbol"].str.strip_chars().fill_null("")
    empty = column == ""
    if empty.all():
        return None
    if empty.any():
        raise UserError(f"{table.line(int(empty.arg_max() or 0))}: {SYMBOL_MISSING}")
    return column
