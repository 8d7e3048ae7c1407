"""A vendor's bars and VIX values -> the merged CSV."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import MAX_TICKS, to_ticks
from vpoc.data.columns import PRICES, STAMP_FORMAT, TICK
from vpoc.data.readers import read_vendor
from vpoc.data.readers.contracts import OneContract, one_contract
from vpoc.data.readers.vix import Vix, read_vix
from vpoc.data.rules import ROW_ADVICE, grid_problem
from vpoc.data.vendor import VendorBars
from vpoc.errors import UserError

STALE_DAYS = 5
"""No weekend and holiday together is longer than this."""


@dataclass(frozen=True)
class Merged:
    """The merged CSV and what is worth knowing about it.

    `format`, `zone`, `stamp_side`, `bar_seconds`: what the file of bars was taken for. `symbols`: the contracts kept,
    in order of time. `spread_rows`, `other_rows`: rows of strategies, and of contracts that were not in front.
    `unended`: last lines that were left out because they are not ended. `off_grid`: rows with a price that is no
    multiple of the tick. `daily_vix`: VIX values are closes of days.
    """

    csv: bytes
    rows: int
    format: str
    zone: str
    stamp_side: str
    bar_seconds: int
    symbols: tuple[str, ...]
    spread_rows: int
    other_rows: int
    unended: int
    off_grid: int
    duplicates: int
    daily_vix: bool
    without_vix: int
    stale_vix: int

    def summary(self) -> str:
        """Return a short paragraph on what was found and done."""
        step = f"{self.bar_seconds}-second bars" if self.bar_seconds else "single trades"
        parts = [
            f"{self.rows} rows of {step}, read as {self.format}; stamps read as {self.zone}, {self.stamp_side} of bar",
            f"{self.duplicates} duplicates dropped; {self.off_grid} rows with a price off the grid",
            f"{'daily' if self.daily_vix else 'intraday'} VIX: {self.without_vix} rows without VIX, {self.stale_vix} "
            f"with a VIX older than {STALE_DAYS} days",
        ]
        if len(self.symbols) > 1 or self.spread_rows or self.other_rows:
            parts.insert(
                1,
                f"contracts kept: {', '.join(self.symbols)}; left out: {self.spread_rows} rows of spreads, "
                f"{self.other_rows} of other contracts",
            )
        if self.unended:
            parts.append("the last line is not ended, so it was left out")
        return "; ".join(parts)

    def facts(self) -> dict[str, Any]:
        """Everything but the CSV, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "csv"}


def merge(
    bars_path: Path,
    vix_path: Path,
    zone: str | None = None,
    *,
    stamp_side: str | None = None,
    columns: Mapping[str, str] | None = None,
    symbol: str | None = None,
) -> Merged:
    """Join the bars with the last VIX value published by the END of each bar; never a later one.

    Of several contracts at the same time the front one of each session is kept, or `symbol`. Rows are sorted and exact
    duplicates dropped. The other arguments are as in `read_vendor`. UserError on what cannot be read, a zone or side of
    the stamps that nothing shows, prices off the grid, or two different bars with the same stamp.
    """
    read = read_vendor(bars_path, zone=zone, stamp_side=stamp_side, columns=columns, symbol=symbol)
    one = one_contract(read)
    off_grid = _off_grid(one.bars)
    unique = _sorted_once(one.bars)
    published = read_vix(vix_path, zone)
    ts = unique["ts"].to_numpy()
    vix, age_days = as_of(ts + read.bar_seconds, published.published, published.close)
    return _merged(read, one, unique, published, vix, age_days, off_grid, one.bars.frame.height - unique.height)


def as_of(ends: Ints, published: Ints, values: Floats) -> tuple[Floats, Floats]:
    """The last of `values` published by each of `ends`, and its age in days; both [bars], NaN before the first.

    `ends` [bars] and `published` [values], sorted, are seconds since 1970 UTC.
    """
    last = np.searchsorted(published, ends, side="right") - 1
    known = last >= 0
    age = (ends - published[last]) / 86_400
    return np.where(known, values[last], np.nan), np.where(known, age, np.nan)


def _merged(
    read: VendorBars,
    one: OneContract,
    rows: pl.DataFrame,
    published: Vix,
    vix: Floats,
    age_days: Floats,
    off_grid: int,
    duplicates: int,
) -> Merged:
    out = rows.select(
        pl.from_epoch("ts", time_unit="s").dt.to_string(STAMP_FORMAT).alias("ts"),
        *PRICES,
        "volume",
        pl.Series("vix", vix, nan_to_null=True),
        *(["symbol"] if one.symbols else []),
    )
    buffer = io.BytesIO()
    out.write_csv(buffer, float_precision=2)
    return Merged(
        csv=buffer.getvalue(),
        rows=out.height,
        format=read.format,
        zone=read.zone,
        stamp_side=read.stamp_side,
        bar_seconds=read.bar_seconds,
        symbols=one.symbols,
        spread_rows=one.spread_rows,
        other_rows=one.other_rows + read.counts.get("rows_of_other_symbols", 0),
        unended=read.counts.get("unended_last_line", 0) + read.counts.get("unended_last_record", 0),
        off_grid=off_grid,
        duplicates=duplicates,
        daily_vix=published.daily,
        without_vix=int(np.isnan(vix).sum()),
        stale_vix=int((age_days > STALE_DAYS).sum()),
    )


def _sorted_once(bars: VendorBars) -> pl.DataFrame:
    """The rows by time, without exact duplicates; trades all of them. UserError on two bars of one time."""
    if (np.diff(bars.frame["ts"].to_numpy()) > 0).all():
        return bars.frame
    frame = bars.frame.with_row_index("row")
    if not bars.bar_seconds:
        return frame.sort("ts", "row")
    sorted_rows = frame.unique(subset=["ts", *PRICES, "volume"], keep="first").sort("ts", "row")
    conflict = sorted_rows.filter(pl.col("ts").diff() == 0)
    if conflict.height:
        raise UserError(
            f"{bars.where(int(conflict['row'][0]))}: another row has the same stamp but other values "
            f"({conflict.height} such rows); keep one of them"
        )
    return sorted_rows


def _off_grid(bars: VendorBars) -> int:
    """How many rows have a price off the grid; the rule of loading, applied before two decimals hide it."""
    off_grid = np.zeros(bars.frame.height, dtype=np.bool_)
    for name in PRICES:
        values = bars.frame[name].to_numpy()
        absurd = np.abs(values) > MAX_TICKS * TICK
        if absurd.any():
            where = bars.where(int(np.flatnonzero(absurd)[0]))
            raise UserError(f"{where}: {name} is beyond any price; {ROW_ADVICE}")
        off_grid |= to_ticks(values)[1]
    problem = grid_problem(off_grid)
    if problem is not None:
        raise UserError(problem.at(bars.where(problem.first_row)))
    return int(off_grid.sum())
