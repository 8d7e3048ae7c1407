"""Bars of a file before their stamps are interpreted, and the conversion to VendorBars."""

from dataclasses import dataclass

import polars as pl

from vpoc.data.readers.clock import starts
from vpoc.data.readers.stamps import Written
from vpoc.data.readers.vendor import FileRows, VendorBars


@dataclass(frozen=True, kw_only=True)
class RawBars(FileRows):
    """Rows with their stamps as the file has them, [rows].

    `documented`: the side of its stamps that this format is known to have, None if they may be either. `trades`: rows
    are single trades.
    """

    stamps: Written
    documented: str | None
    trades: bool = False


def finish(raw: RawBars, zone: str | None, side: str | None) -> VendorBars:
    """Return `raw` with its stamps in UTC; `zone` and `side` are what the user says. UserError as from `starts`."""
    begun = starts(raw.path, raw.stamps, raw.where, zone=zone, side=side, documented=raw.documented)
    frame = raw.frame.with_columns(ts=pl.Series(begun.ts))
    if "symbol" not in frame.columns:
        frame = frame.with_columns(symbol=pl.lit(None, pl.String))
    return VendorBars(
        path=raw.path,
        sha256=raw.sha256,
        format=raw.format,
        frame=frame,
        unit=raw.unit,
        counts=raw.counts,
        zone=begun.zone,
        stamp_side=begun.side,
        bar_seconds=0 if raw.trades else begun.bar_seconds,
    )
