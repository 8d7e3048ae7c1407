"""Reads bars from delimited text: with a header by its names, without one by the shape of the lines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vpoc.arrays import Floats
from vpoc.data.columns import PRICES, REQUIRED
from vpoc.data.readers.column_names import COLUMN_NAMES, NEEDED, find_columns, stamp_text, tidy, with_time
from vpoc.data.readers.raw import RawBars
from vpoc.data.readers.stamps import CANONICAL, MONTH_FIRST, written
from vpoc.data.readers.text import TextFile, header_of, is_number, open_text, read_values
from vpoc.data.text_table import Table, numbers, symbols
from vpoc.errors import UserError

UNSCALED = 1e7
"""No contract trades at so many points; larger prices of Databento are counts of 1e-9."""
TWO_BLANKS = re.compile(r"\d{8}  \d\d:\d\d:\d\d")
NAMED_ZONE = re.compile(r"\d{8} \d\d:\d\d:\d\d [A-Z]")
OFFSET_OR_EPOCH = re.compile(r"(\d{9,10}|\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d))")
KIBOT = re.compile(r"\d\d/\d\d/\d{4}")
NINJATRADER = re.compile(r"\d{8} \d{6}")


@dataclass(frozen=True)
class FileLayout:
    """The format of a file.

    `format`: its name.
    `documented`: the side of the stamps, if the format is known for one.
    `places`: the position of each column.
    """

    format: str
    documented: str | None
    places: Mapping[str, int]


def read_delimited(
    path: Path, columns: Mapping[str, str] | None, symbol: str | None, dates: str | None = None
) -> RawBars:
    """Read a text file.

    `columns`: the user's names -> ours.
    `symbol`: the symbol to take if the header has several.
    `dates`: as in `written`.
    """
    text = open_text(path)
    layout = _with_header(text, columns, symbol) if text.levels else _without_header(text)
    wanted = dict(layout.places)
    prices, volume, table = read_values(text, wanted)
    if layout.format == "databento":
        prices = _unscaled(prices)
    if not text.levels:
        _require_high_low(table, prices)
    if layout.format == "kibot":
        dates = dates or MONTH_FIRST
    stamps = written(stamp_text(table, text.head[0] if text.levels else None, wanted), dates)
    found: dict[str, Any] = {"line": np.arange(len(volume)) + 1 + text.header_lines, **prices, "volume": volume}
    if (named := symbols(table)) is not None:
        found["symbol"] = named
    if "vix" in wanted:
        found["vix"] = numbers(table, "vix", empty=np.nan)
    return RawBars(
        path=path,
        sha256=text.sha256,
        format=layout.format,
        frame=pl.DataFrame(found),
        stamps=stamps,
        documented=layout.documented,
        counts={"unended_last_line": 1} if text.unended else {},
    )


def has_vix_column(path: Path) -> bool:
    """Return whether the header of a text file names stamps, prices and a VIX; False for other files."""
    try:
        header = header_of(path)
    except UserError:
        return False
    names = [tidy(cell) for cell in header]
    return all(any(name in names for name in COLUMN_NAMES[column]) for column in (*NEEDED, "vix"))


def _with_header(text: TextFile, columns: Mapping[str, str] | None, symbol: str | None) -> FileLayout:
    header = text.head[0]
    if text.levels == 3:
        return _yfinance_levels(text, symbol)
    names = [tidy(cell) for cell in header]
    places = find_columns(text.path, header, columns, NEEDED)
    first = text.head[1] if len(text.head) > 1 else []
    places = with_time(places, header, first)
    stamp = first[places["stamp"]].strip() if len(first) == len(header) else ""
    if set(REQUIRED) <= set(names):
        return FileLayout("merged", "start" if CANONICAL.fullmatch(stamp) else None, places)
    if tidy(header[places["stamp"]]) == "ts_event":
        if "symbol" not in places and "instrument_id" in names:
            places["symbol"] = names.index("instrument_id")
        return FileLayout("databento", "start", places)
    if "adj close" in names:
        return FileLayout("yfinance", "start", places)
    if TWO_BLANKS.match(stamp) or NAMED_ZONE.match(stamp):
        return FileLayout("interactive-brokers", "start", places)
    if names[0] == "time" and header[0].strip(' "') == "time" and OFFSET_OR_EPOCH.fullmatch(stamp):
        return FileLayout("tradingview", "start", places)
    return FileLayout("csv", None, places)


def _yfinance_levels(text: TextFile, symbol: str | None) -> FileLayout:
    """Return the layout of the three header lines that pandas writes for two levels of columns.

    The lines are the names, the tickers and the index.
    """
    names, tickers = ([tidy(cell) for cell in text.head[row]] for row in (0, 1))
    there = sorted({ticker for ticker in tickers[1:] if ticker})
    if len(there) > 1 and (symbol is None or symbol.lower() not in there):
        shown = ", ".join(ticker.upper() for ticker in there[:4])
        raise UserError(f"{text.path}, line 2: several symbols in one file ({shown}); choose one with --symbol")
    taken = symbol.lower() if len(there) > 1 and symbol else there[0] if there else ""
    chosen = ["stamp" if place == 0 else name if tickers[place] == taken else "" for place, name in enumerate(names)]
    places = find_columns(text.path, ["datetime", *chosen[1:]], None, NEEDED)
    return FileLayout("yfinance", "start", places)


def _without_header(text: TextFile) -> FileLayout:
    """Return the layout of lines with date, time, open, high, low, close, volume, in this order.

    The stamp in one cell or two.
    """
    first = [cell.strip() for cell in text.head[0]]
    if text.delimiter == "," and len(first) == 7 and KIBOT.fullmatch(first[0]) and ":" in first[1]:
        layout = FileLayout("kibot", None, {"stamp": 0, "time": 1, **_in_order(2)})
    elif text.delimiter == ";" and len(first) == 6 and NINJATRADER.fullmatch(first[0]):
        layout = FileLayout("ninjatrader", None, {"stamp": 0, **_in_order(1)})
    else:
        raise UserError(
            f"{text.path}, line 1: there is no header, and the lines are not of a layout that is known; put a first "
            "line with the names of the columns, such as datetime,open,high,low,close,volume"
        )
    if not all(is_number(cell) for cell in first[-5:]):
        raise UserError(f"{text.path}, line 1: not date, time, open, high, low, close, volume; add a header line")
    return layout


def _in_order(start: int) -> dict[str, int]:
    return {name: start + place for place, name in enumerate((*PRICES, "volume"))}


def _require_high_low(table: Table, prices: Mapping[str, Floats]) -> None:
    """Check the order of the columns: without a header only the prices themselves show it."""
    top = np.maximum(prices["open"], prices["close"])
    bottom = np.minimum(prices["open"], prices["close"])
    wrong = (prices["high"] < top) | (prices["low"] > bottom)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(
            f"{table.line(row)}: open or close is outside low..high, and there is no header that tells the columns "
            "apart; add a header line, or correct the row"
        )


def _unscaled(prices: dict[str, Floats]) -> dict[str, Floats]:
    """Return the prices in points, converted if they are counts of 1e-9."""
    size = np.abs(prices["close"])
    if np.median(size) < UNSCALED:
        return prices
    return {name: values / 1e9 for name, values in prices.items()}
