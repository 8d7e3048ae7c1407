"""A vendor's bars and a daily VIX file -> the merged CSV."""

import datetime as dt
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.data.bars import Floats, Ints, bar_seconds, grid_problem, to_ticks
from vpoc.data.columns import PRICES, STAMP_FORMAT
from vpoc.data.sessions import ZONE
from vpoc.data.stamps import require_starts, stamp_column, utc_stamps
from vpoc.data.table import Table, numbers, one_symbol, read_table, require_columns, require_years, volumes
from vpoc.errors import UserError

VIX_COLUMNS = ("date", "close")
VIX_DATES = ("%Y-%m-%d", "%m/%d/%Y")
VIX_PUBLISHED = dt.time(16, 15)
"""New York time from which the VIX close of a day is known."""
STALE_DAYS = 5
"""No weekend and holiday together is longer than this."""


@dataclass(frozen=True)
class Merged:
    """The merged CSV and what is worth knowing about it.

    `zone`: of the bars' stamps. `off_grid`: rows with a price that is no multiple of the tick.
    """

    csv: bytes
    rows: int
    zone: str
    off_grid: int
    duplicates: int
    without_vix: int
    stale_vix: int


def merge(bars_path: Path, vix_path: Path, zone: str | None = None) -> Merged:
    """Join the bars with the last VIX close published by the END of each bar; never a later one.

    Columns are found by name. Rows are sorted and exact duplicates dropped. UserError on what cannot be read, missing
    columns, several symbols, an unknown zone, prices off the grid, stamps that look like the ends of bars, or two
    different bars with the same stamp.
    """
    table = read_table(bars_path)
    require_columns(table, (stamp_column(table), *PRICES, "volume"))
    ts, zone = utc_stamps(table, zone)
    prices = {name: numbers(table, name) for name in PRICES}
    off_grid = _off_grid(table, prices)
    columns = {"row": np.arange(len(ts)), "ts": ts, **prices}
    frame = pl.DataFrame({**columns, "volume": volumes(table)})
    symbol = one_symbol(table)
    values = ["ts", *PRICES, "volume"]
    unique = frame.unique(subset=values, keep="first").sort("ts", "row")
    _refuse_conflicts(table, unique)
    ts = unique["ts"].to_numpy()
    require_starts(table, ts, bar_seconds(ts))
    published, close = _vix(vix_path)
    vix, age_days = as_of(ts + bar_seconds(ts), published, close)
    out = unique.select(
        pl.from_epoch("ts", time_unit="s").dt.to_string(STAMP_FORMAT),
        *PRICES,
        "volume",
        pl.Series("vix", vix, nan_to_null=True),
        *([pl.lit(symbol).alias("symbol")] if symbol is not None else []),
    )
    buffer = io.BytesIO()
    out.write_csv(buffer, float_precision=2)
    return Merged(
        csv=buffer.getvalue(),
        rows=out.height,
        zone=zone,
        off_grid=off_grid,
        duplicates=frame.height - unique.height,
        without_vix=int(np.isnan(vix).sum()),
        stale_vix=int((age_days > STALE_DAYS).sum()),
    )


def as_of(ends: Ints, published: Ints, values: Floats) -> tuple[Floats, Floats]:
    """The last of `values` published by each of `ends`, and its age in days; both [bars], NaN before the first.

    `ends` [bars] and `published` [values], sorted, are seconds since 1970 UTC.
    """
    last = np.searchsorted(published, ends, side="right") - 1
    known = last >= 0
    age = (ends - published[last]) / 86_400
    return np.where(known, values[last], np.nan), np.where(known, age, np.nan)


def _refuse_conflicts(table: Table, bars: pl.DataFrame) -> None:
    conflict = bars.filter(pl.col("ts").diff() == 0)
    if conflict.height:
        raise UserError(
            f"{table.line(int(conflict['row'][0]))}: another row has the same stamp but other values "
            f"({conflict.height} such rows); keep one of them"
        )


def _off_grid(table: Table, prices: dict[str, Floats]) -> int:
    """How many rows have a price off the grid; the rule of loading, applied before two decimals hide it."""
    off_grid = np.zeros(table.frame.height, dtype=np.bool_)
    for name, values in prices.items():
        off_grid |= to_ticks(table, name, values)[1]
    problem = grid_problem(off_grid)
    if problem is not None:
        raise UserError(f"{table.line(problem.first_row)}: {problem.name} ({problem.rows} rows); {problem.advice}")
    return int(off_grid.sum())


def _vix(path: Path) -> tuple[Ints, Floats]:
    """When each VIX close was published (seconds since 1970 UTC, sorted) and the closes, in points.

    Exact duplicates are dropped. UserError, with the line, on a date that cannot be read or has two closes, and on a
    close that is not above zero.
    """
    table = read_table(path)
    require_columns(table, VIX_COLUMNS)
    text = table.frame["date"].str.strip_chars()
    for style in VIX_DATES:
        date = text.str.to_date(style, strict=False)
        if date[0] is not None:
            break
    if date.null_count():
        row = int(date.is_null().arg_max() or 0)
        raise UserError(f"{table.line(row)}: date is {text[row]!r}, not like 2018-01-02; correct the row")
    require_years(table, "date", date)
    close = numbers(table, "close")
    if (close <= 0).any():
        row = int(np.flatnonzero(close <= 0)[0])
        raise UserError(f"{table.line(row)}: close is {table.frame['close'][row]}, not above zero; correct the row")
    days = pl.DataFrame({"row": np.arange(len(date)), "date": date, "close": close})
    days = days.unique(subset=["date", "close"], keep="first").sort("date", "row")
    conflict = days.filter(pl.col("date").diff() == dt.timedelta(0))
    if conflict.height:
        raise UserError(
            f"{table.line(int(conflict['row'][0]))}: another row has the same date but another close "
            f"({conflict.height} such rows); keep one of them"
        )
    stamps = days["date"].dt.combine(VIX_PUBLISHED).dt.replace_time_zone(ZONE).dt.epoch("s").to_numpy()
    return stamps, days["close"].to_numpy()
