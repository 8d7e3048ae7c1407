"""Reads bars from a parquet file; columns are found by name, as in a CSV with a header."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Flags, Floats, Ints
from vpoc.checksummed_parquet import LARGE, MOST_VALUES_A_BYTE
from vpoc.data.columns import PRICES
from vpoc.data.readers.column_names import NEEDED, find_columns
from vpoc.data.readers.raw import RawBars
from vpoc.data.readers.stamps import Written, require_seconds, written
from vpoc.data.text_table import Table, symbols, whole_volumes
from vpoc.errors import UserError, from_os_error
from vpoc.files import require_unchanged, sha256_file, state_of_file

PARQUET_MAGIC = b"PAR1"
MOST_ROWS = 20_000_000
"""Minutes of two contracts for thirty years.

A billion rows could be stored in some megabytes, but fit into no memory.
"""
MOST_TEXT = 1 << 30
"""Most bytes of text; a stamp has about thirty."""
MOST_TEXT_A_CELL = 1000
"""Most bytes of text for each cell: a symbol of megabytes could be repeated in a file of some kilobytes."""
BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions of polars for damaged files; it panics on some torn ones."""


class _Rows(Table):
    def line(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"


def read_parquet(path: Path, columns: Mapping[str, str] | None) -> RawBars:
    """Read a parquet file; `columns`: the user's names -> ours.

    UserError, with the row, for an invalid stamp, a price that is not finite or a volume that is no whole number, and
    for more than MOST_ROWS rows, or far more values than bytes.
    """
    state = state_of_file(path)
    try:
        schema = pl.read_parquet_schema(path)
        header = list(schema)
        places = find_columns(path, header, columns, NEEDED)
        names = {header[place]: name for name, place in places.items()}
        _refuse_what_fills_memory(path, {column: schema[column] for column in names}, names)
        # Limit the rows again, because the file's own row count may be wrong.
        frame = pl.read_parquet(path, columns=list(names), glob=False, n_rows=MOST_ROWS)
    except OSError as error:
        raise from_os_error(error, path) from error
    except BROKEN as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise UserError(f"{path}: the parquet file is cut short or damaged ({reason}); copy it again") from error
    if frame.height == 0:
        raise UserError(f"{path}: the file has columns but no rows; give a file with bars")
    digest = sha256_file(path)
    require_unchanged(path, state)
    frame = frame.rename(names)
    table = _Rows(path, frame)
    stamps = _stamps(table)
    found: dict[str, Any] = {
        "line": np.arange(1, frame.height + 1),
        **{name: _numbers(table, name) for name in PRICES},
        "volume": whole_volumes(table, _numbers(table, "volume")),
    }
    if "symbol" in frame.columns:
        as_text = replace(table, frame=frame.with_columns(_cast(table, "symbol", pl.String)))
        if (named := symbols(as_text)) is not None:
            found["symbol"] = named
    if "vix" in frame.columns:
        found["vix"] = _cast(table, "vix", pl.Float64).fill_null(np.nan)
    return RawBars(
        path=path,
        sha256=digest,
        format="parquet",
        frame=pl.DataFrame(found),
        stamps=stamps,
        documented=None,
        unit="row",
    )


def _refuse_what_fills_memory(path: Path, kinds: Mapping[str, pl.DataType], names: Mapping[str, str]) -> None:
    """Raise UserError for a file whose few megabytes would take more memory than bars need, before it is read."""
    for column, kind in kinds.items():
        if kind.is_nested() or kind == pl.Binary:
            raise UserError(f"{path}: the column {names[column]} is of type {kind}, which holds no bars")
    file = pl.scan_parquet(path, glob=False)
    rows = int(file.select(pl.len()).collect().item())
    if rows > MOST_ROWS:
        raise UserError(f"{path}: has {rows:,} rows; more than {MOST_ROWS:,} are not read: divide it by years")
    if rows * len(kinds) > max(LARGE, MOST_VALUES_A_BYTE * path.stat().st_size):
        raise UserError(f"{path}: has {rows:,} rows in {path.stat().st_size:,} bytes, too few for bars; make it again")
    lengths = [
        pl.col(column).str.len_bytes() if kind == pl.String else pl.col(column).cat.len_bytes()
        for column, kind in kinds.items()
        if kind in (pl.String, pl.Categorical, pl.Enum)
    ]
    # A 32-bit sum would overflow.
    texts = [length.cast(pl.UInt64).sum() for length in lengths]
    most = min(MOST_TEXT, MOST_TEXT_A_CELL * rows * len(texts))
    if texts and (size := sum(file.select(texts).collect(engine="streaming").row(0))) > most:
        remedy = "divide it by years" if most == MOST_TEXT else "no symbol or stamp is so long"
        raise UserError(f"{path}: has {size:,} bytes of text; more than {most:,} are not read: {remedy}")


def _stamps(table: Table) -> Written:
    column = table.frame["stamp"]
    _refuse(table, "stamp", column.is_null().to_numpy(), "is empty")
    kind = column.dtype
    if isinstance(kind, pl.Datetime):
        seconds: Ints = column.dt.epoch("s").to_numpy()
        require_seconds(seconds, lambda row: f"{table.line(row)}: the stamp is {np.datetime64(int(seconds[row]), 's')}")
        return Written(seconds, utc=kind.time_zone is not None, zone="UTC" if kind.time_zone else None)
    if kind.is_integer():
        column = column.cast(pl.String)
    if column.dtype != pl.String:
        raise UserError(f"{table.path}: the stamps are of type {kind}, not dates with a time; write them as timestamps")
    return written(replace(table, frame=pl.DataFrame({"stamp": column})))


def _numbers(table: Table, name: str) -> Floats:
    values: Floats = _cast(table, name, pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    _refuse(table, name, ~np.isfinite(values), "is not a finite number")
    return values


def _cast(table: Table, name: str, kind: type[pl.DataType], *, strict: bool = True) -> pl.Series:
    column = table.frame[name]
    try:
        cast: pl.Series = column.cast(kind, strict=strict)
    except BROKEN as error:
        what = "text" if kind is pl.String else "numbers"
        raise UserError(
            f"{table.path}: the column {name} is of type {column.dtype}, or holds what is no {what}"
        ) from error
    return cast


def _refuse(table: Table, name: str, wrong: Flags, what: str) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{table.line(row)}: {name} {what} ({table.frame[name][row]}); correct or remove the row")
