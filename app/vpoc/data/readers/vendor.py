"""Bars of a vendor's file, as they are in the file, with stamps in UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Floats
from vpoc.data.bars import Bars, made_bars
from vpoc.data.columns import PRICES


@dataclass(frozen=True, kw_only=True)
class FileRows:
    """Rows of a file of bars, in file order, unchecked beyond being readable.

    `frame` columns: `line` (Int64, the line of the file, from 1; the record for binary files), `open`, `high`, `low`,
    `close` (Float64, index points), `volume` (Int64, contracts), `symbol` (String) in a file that has some, in one with
    VIX `vix` (Float64, NaN where the cell is empty) and, where a file holds several, `entry` (String).
    `format`: name of the reader. `unit`: what `line` counts: "line", "row" or "record". `counts`: what was left out or
    changed on reading, by what it is; such as a last line that is not ended.
    """

    path: Path
    sha256: str
    format: str
    frame: pl.DataFrame
    unit: str = "line"
    counts: Mapping[str, int] = field(default_factory=dict)

    def where(self, row: int) -> str:
        """Return the place of row `row` (from 0), for an error message."""
        entry = f"{self.frame['entry'][row]}, " if "entry" in self.frame.columns else ""
        return f"{self.path}, {entry}{self.unit} {self.frame['line'][row]}"


@dataclass(frozen=True, kw_only=True)
class VendorBars(FileRows):
    """Rows of a file as bars.

    More columns: `ts` (Int64, START of the bar, seconds since 1970 UTC), and `symbol` always, null where there is none.
    `zone`: of the stamps in the file. `stamp_side`: "start" or "end", what the stamps in the file mark. `bar_seconds`:
    step between bars; 0 for single trades.
    """

    zone: str
    stamp_side: str
    bar_seconds: int

    def bars(self, part: pl.DataFrame, vix: Floats) -> Bars:
        """Return the rows `part` of `frame` as Bars, with `vix` [rows].

        Contracts are numbered in the order in which the whole frame names them.
        """
        symbols = self.frame["symbol"].drop_nulls().unique(maintain_order=True).to_list()
        contract = np.zeros(part.height, dtype=np.int64)
        if symbols and part.height:
            codes = {symbol: code for code, symbol in enumerate(symbols)}
            contract = part["symbol"].replace_strict(codes, return_dtype=pl.Int64).to_numpy()
        prices = {name: part[name].to_numpy() for name in PRICES}
        made = made_bars(
            self.path, part["ts"].to_numpy(), prices, part["volume"].to_numpy(), vix, contract, tuple(symbols)
        )
        return replace(made, bar_seconds=self.bar_seconds)
