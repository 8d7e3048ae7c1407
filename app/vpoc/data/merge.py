"""Merges a vendor's bars and VIX values into the merged CSV."""

import io
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import MAX_TICKS, Bars, to_ticks
from vpoc.data.checks.plausibility import Plausibility
from vpoc.data.checks.plausibility_gate import judged, require_plausible
from vpoc.data.checks.plausibility_rules import VIX_HIGH, VIX_LOW
from vpoc.data.columns import PRICES, STAMP_FORMAT, TICK
from vpoc.data.exchange.calendar import rth_close
from vpoc.data.exchange.sessions import EVENING, day, new_york
from vpoc.data.readers import read_vendor
from vpoc.data.readers.contracts import one_contract
from vpoc.data.readers.vendor import VendorBars
from vpoc.data.readers.vix import PUBLISHED, Vix, read_vix
from vpoc.data.rules import ROW_ADVICE, first_problem, grid_problem
from vpoc.errors import UserError

STALE_DAYS = 5
"""Age in days from which a VIX is stale: no weekend with a holiday is longer."""


@dataclass(frozen=True)
class Merged:
    """The merged CSV and the facts that a user should know about it.

    `format`, `zone`, `stamp_side`, `bar_seconds`: how the file of bars was interpreted.
    `symbols`: the contracts kept, in order of time.
    `spread_rows`, `other_rows`: rows of strategies, and of contracts that were not the front one.
    `unended`: unterminated last lines, which were left out.
    `off_grid`: rows with a price that is no multiple of the tick.
    `vix`: the source of its values.
    `smaller_kept`: sessions in which the kept contract traded less than another one.
    `warnings`: facts that are not quite plausible.
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
    vix: str
    without_vix: int
    stale_vix: int
    smaller_kept: tuple[str, ...]
    warnings: list[str]

    def summary(self) -> str:
        """Return a short paragraph on what was found and done."""
        step = f"{self.bar_seconds}-second bars" if self.bar_seconds else "single trades"
        parts = [
            f"{self.rows} rows of {step}, read as {self.format}; stamps read as {self.zone}, {self.stamp_side} of bar",
            f"{self.duplicates} duplicates dropped; {self.off_grid} rows with a price off the grid",
            f"{self.vix}: {self.without_vix} rows without VIX, {self.stale_vix} "
            f"with a VIX older than {STALE_DAYS} days",
        ]
        if len(self.symbols) > 1 or self.spread_rows or self.other_rows:
            parts.insert(
                1,
                f"contracts kept: {', '.join(self.symbols)}; left out: {self.spread_rows} rows of spreads, "
                f"{self.other_rows} of contracts that traded less in the session",
            )
        if self.unended:
            parts.append("the last line is not ended, so it was left out")
        return "; ".join(parts)

    def facts(self) -> dict[str, Any]:
        """Return everything but the CSV, as values for JSON."""
        return {name: value for name, value in vars(self).items() if name != "csv"}


def merge(
    bars_path: Path,
    vix_path: Path | None,
    zone: str | None = None,
    *,
    vix_zone: str | None = None,
    stamp_side: str | None = None,
    columns: Mapping[str, str] | None = None,
    symbol: str | None = None,
    dates: str | None = None,
    accepted: Collection[str] = (),
) -> Merged:
    """Join the bars with the last VIX value published by the END of each bar; never a later one.

    Of several contracts at the same time the front one of each session is kept, or `symbol`. Rows are sorted and exact
    duplicates dropped. `vix_zone` is that of VIX bars, as in `read_vix`; the other arguments are as in `read_vendor`.
    UserError for a file that cannot be read, a zone or side of the stamps that nothing shows, impossible bars, two
    different bars with the same stamp, and data that is not plausible by a rule which is not `accepted`.
    """
    read = read_vendor(bars_path, zone=zone, stamp_side=stamp_side, columns=columns, symbol=symbol, dates=dates)
    if vix_path is None and "vix" not in read.frame.columns:
        raise UserError(f"{bars_path}: there is no column vix; give the file of VIX values with --vix")
    one = one_contract(read)
    off_grid = _off_grid(one.bars)
    unique = _sorted_once(one.bars)
    ts = unique["ts"].to_numpy()
    if vix_path is None:
        vix, age_days, kind = unique["vix"].to_numpy(), np.zeros(len(ts)), "VIX of the same file"
    else:
        published = read_vix(vix_path, vix_zone, dates)
        require_vix(vix_path, published, accepted)
        vix, age_days = as_of(ts + read.bar_seconds, published.published, published.close)
        kind = "daily VIX" if published.daily else "intraday VIX"
    bars, warnings = _judged(replace(one.bars, frame=unique), vix, accepted)
    if kind == "daily VIX" and np.isfinite(vix[-1:]).any():
        ends = ts[-1:] + read.bar_seconds
        warnings += _not_yet(vix_path, ends, np.rint(ends - age_days[-1:] * 86_400).astype(np.int64))
    return Merged(
        csv=_csv(bars),
        rows=len(bars),
        format=read.format,
        zone=read.zone,
        stamp_side=read.stamp_side,
        bar_seconds=read.bar_seconds,
        symbols=one.symbols,
        spread_rows=one.spread_rows,
        other_rows=one.other_rows + read.counts.get("rows_of_other_symbols", 0),
        unended=read.counts.get("unended_last_line", 0) + read.counts.get("unended_last_record", 0),
        off_grid=off_grid,
        duplicates=one.bars.frame.height - unique.height,
        vix=kind,
        without_vix=int(np.isnan(bars.vix).sum()),
        stale_vix=int((age_days > STALE_DAYS).sum()),
        smaller_kept=one.smaller_kept,
        warnings=warnings,
    )


def bars_with_vix(path: Path) -> Bars:
    """Return the bars of a file with a VIX column, of any format that `read_vendor` knows, as `merge` makes them.

    UserError as from `merge`, except for data that is not plausible.
    """
    try:
        read = read_vendor(path)
    except UserError as error:
        # Only `vpoc merge` has options for facts that the stamps do not show.
        hint = f"; `vpoc merge --bars {path} --output merged.csv` takes it" if "with --" in str(error) else ""
        raise UserError(f"{error}{hint}") from error
    one = one_contract(read)
    _off_grid(one.bars)
    unique = _sorted_once(one.bars)
    bars = _bars(replace(one.bars, frame=unique), unique["vix"].to_numpy())
    return replace(bars, sha256=read.sha256, rows_in_file=read.frame.height, smaller_kept=one.smaller_kept)


def require_vix(path: Path, published: Vix, accepted: Collection[str]) -> None:
    """Raise UserError when the values of the file at `path` are no VIX, unless that is `accepted`."""
    values = published.close
    median = float(np.median(values))
    if not VIX_LOW <= median <= VIX_HIGH and not {"vix_range", "vix_is_price"} & set(accepted):
        raise UserError(
            f"{path}: half of its closes are {'above' if median > VIX_HIGH else 'below'} {median:g}, and a VIX is "
            f"between {VIX_LOW:g} and {VIX_HIGH:g}; give the file of VIX values as --vix, or say --accept vix_range"
        )


def _bars(rows: VendorBars, vix: Floats) -> Bars:
    """Return the rows as bars; UserError for the first impossible one."""
    bars = rows.bars(rows.frame, vix)
    problem = first_problem(bars)
    if problem is not None:
        told = problem.at(rows.where(problem.first_row))
        raise UserError(f"{told}; `vpoc check {rows.path} --fix COPY` leaves such rows out")
    return bars


def _judged(rows: VendorBars, vix: Floats, accepted: Collection[str]) -> tuple[Bars, list[str]]:
    """Return the rows as bars, and warnings; UserError for data that training would refuse."""
    bars, frame = _bars(rows, vix), rows.frame
    gate = Plausibility()
    gate.add(bars, frame["line"].to_numpy() if rows.unit == "line" else None)
    found = gate.found()
    require_plausible(rows.path, found, accepted)
    return bars, [one.warning() for one in judged(found, accepted)[1]]


def as_of(ends: Ints, published: Ints, values: Floats) -> tuple[Floats, Floats]:
    """Return the last of `values` published by each of `ends`, and its age in days; both [bars], NaN before the first.

    `ends` [bars] and `published` [values], sorted, are seconds since 1970 UTC.
    """
    last = np.searchsorted(published, ends, side="right") - 1
    known = last >= 0
    age = (ends - published[last]) / 86_400
    return np.where(known, values[last], np.nan), np.where(known, age, np.nan)


def _not_yet(path: Path | None, ends: Ints, published: Ints) -> list[str]:
    """Return a warning if the last bar has the VIX of an earlier day than had closed by its end, as early in a night.

    `ends` and `published`, when the bar ended and its VIX was published, have one element, in seconds since 1970 UTC.
    """
    (date,), (minute,) = new_york(ends)
    (had,), _ = new_york(published)
    # From 18:00 on, bars are of the next trade date.
    closed = date if PUBLISHED.hour * 60 + PUBLISHED.minute <= minute < EVENING else date - 1
    missing = np.arange(had + 1, closed + 1)
    # Bars beyond the calendar are refused where they are used.
    with suppress(UserError):
        missing = missing[rth_close(missing) > 0]
    if not missing.size:
        return []
    since = f"the last bars have that of {day(had)}; merge again once it has the later one"
    return [f"{path}: the VIX of {day(missing[-1])} is not in it: {since}"]


def _csv(bars: Bars) -> bytes:
    """The merged CSV."""
    out = {
        "ts": pl.from_epoch(pl.Series(bars.ts), time_unit="s").dt.to_string(STAMP_FORMAT),
        **{name: pl.Series(getattr(bars, name) * TICK) for name in PRICES},
        "volume": pl.Series(bars.volume),
        "vix": pl.Series(bars.vix, nan_to_null=True),
    }
    if bars.symbols:
        out["symbol"] = pl.Series(bars.symbols, dtype=pl.String).gather(bars.contract)
    buffer = io.BytesIO()
    pl.DataFrame(out).write_csv(buffer, float_precision=2)
    return buffer.getvalue()


def _sorted_once(bars: VendorBars) -> pl.DataFrame:
    """Return the rows by time, without exact duplicates; of trades, all rows. UserError for two bars of one time."""
    if (np.diff(bars.frame["ts"].to_numpy()) > 0).all():
        return bars.frame
    frame = bars.frame.with_row_index("row")
    if not bars.bar_seconds:
        return frame.sort("ts", "row")
    sorted_rows = frame.unique(subset=["ts", *PRICES, "volume"], keep="first").sort("ts", "row")
    conflict = sorted_rows.filter(pl.col("ts").diff() == 0)
    if conflict.height:
        named = "" if frame["symbol"].count() else "; if rows are of several contracts, say --column NAME=symbol"
        raise UserError(
            f"{bars.where(int(conflict['row'][0]))}: another row has the same stamp but other values "
            f"({conflict.height} such rows); keep one of them, or none by `vpoc check {bars.path} --fix OUTPUT`{named}"
        )
    return sorted_rows


def _off_grid(bars: VendorBars) -> int:
    """Return the number of rows with a price off the grid.

    Applies the rule of loading before rounding to two decimals hides it.
    """
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
