"""Bars of a file before its stamps are understood, and their conversion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.columns import PRICES
from vpoc.data.readers.clock import starts
from vpoc.data.readers.stamps import Written
from vpoc.data.readers.vendor import VendorBars


@dataclass(frozen=True)
class RawBars:
    """Bars of a file, in file order; arrays are [rows].

    `lines`: where each row stands, in `unit`s, of `entries` where the file has several. `documented`: the side of its
    stamps that this format is known to have, None if they may be either. `trades`: rows are single trades. `where`:
    tells where a row stands, for messages. `vix`: NaN where the cell is empty, None without such a column.
    """

    path: Path
    sha256: str
    format: str
    lines: Ints
    stamps: Written
    prices: Mapping[str, Floats]
    volume: Ints
    symbol: pl.Series | None
    vix: Floats | None = field(default=None, kw_only=True)
    documented: str | None
    where: Callable[[int], str]
    trades: bool = False
    unit: str = "line"
    entries: pl.Series | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


def finish(raw: RawBars, zone: str | None, side: str | None) -> VendorBars:
    """`raw` with its stamps in UTC; `zone` and `side` as the user says them. UserError as of `starts`."""
    begun = starts(raw.path, raw.stamps, raw.where, zone=zone, side=side, documented=raw.documented)
    symbol = raw.symbol if raw.symbol is not None else pl.repeat(None, len(raw.volume), dtype=pl.String, eager=True)
    frame = pl.DataFrame(
        {
            "line": pl.Series(raw.lines, dtype=pl.Int64),
            "ts": begun.ts,
            **{name: raw.prices[name] for name in PRICES},
            "volume": raw.volume,
            "symbol": symbol,
            **({} if raw.vix is None else {"vix": raw.vix}),
            **({} if raw.entries is None else {"entry": raw.entries}),
        }
    )
    return VendorBars(
        path=raw.path,
        sha256=raw.sha256,
        format=raw.format,
        frame=frame,
        zone=begun.zone,
        stamp_side=begun.side,
        bar_seconds=0 if raw.trades else begun.bar_seconds,
        unit=raw.unit,
        counts=raw.counts,
    )
