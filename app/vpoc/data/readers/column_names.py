"""Finds the columns of a vendor's file by the names in its header."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from vpoc.data.columns import PRICES
from vpoc.data.readers.stamps import EPOCH_UNITS
from vpoc.data.text_table import Table
from vpoc.errors import UserError

COLUMN_NAMES = {
    "stamp": (
        "ts_event",
        "datetime",
        "date_time",
        "timestamp",
        "ts",
        "date time",
        "date/time",
        "window_start",
        "time",
        "date",
        "observation_date",
    ),
    "open": ("open", "es_open", "open_es", "o"),
    "high": ("high", "es_high", "high_es", "h"),
    "low": ("low", "es_low", "low_es", "l"),
    "close": ("close", "last", "es_close", "close_es", "c"),
    "volume": ("volume", "vol", "es_volume", "volume_es", "v"),
    "symbol": ("symbol", "ticker", "contract"),
    "vix": ("vix", "vix_close", "close_vix", "vix close", "vix_last", "^vix"),
}
"""Names that a column may have, the most certain first; compared in lower case, without < and >."""
TIME_ALONE = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[AaPp][Mm])?|\d{4}|\d{6}")
NEEDED = ("stamp", *PRICES, "volume")
OPTIONAL_COLUMNS = ("symbol", "vix")


def tidy(name: str) -> str:
    """Return a header cell in the form in which names are compared."""
    return name.strip(" \t\r\"<>'").lower()


def find_columns(
    path: Path, header: Sequence[str], own: Mapping[str, str] | None, needed: Sequence[str]
) -> dict[str, int]:
    """Return the position (from 0) in `header` of each of `needed`, and of `symbol` and `vix` if there is one.

    `own`: the user's names -> ours (stamp, open, high, low, close, volume, symbol, vix); they take precedence. If date
    and time are two columns, `stamp` is the date and `time` the time. UserError for names that are missing or appear
    twice.
    """
    names = [tidy(cell) for cell in header]
    places = _own(path, names, own or {})
    for column in (*needed, *OPTIONAL_COLUMNS):
        found = next((name for name in COLUMN_NAMES[column] if name in names), None)
        if column in places or found is None:
            continue
        if names.count(found) > 1:
            raise UserError(f"{path}: a column name appears twice in the header ({found}); remove or rename one")
        places[column] = names.index(found)
    if "stamp" not in places and "stamp" in needed:
        raise UserError(
            f"{path}: no stamp column; there are: {', '.join(names)}; needed: one of "
            f"{', '.join(COLUMN_NAMES['stamp'])}, or --column NAME=stamp (of two columns: NAME=date and NAME=time)"
        )
    halves = {"up", "down"}
    if "volume" in needed and halves <= set(names) and names[places.get("volume", names.index("up"))] in halves:
        raise UserError(
            f"{path}: up and down are parts of the volume, as TradeStation exports it; add a column volume that is "
            "their sum"
        )
    missing = [column for column in needed if column not in places]
    if missing:
        # A file of VIX values has no volume, and may have nothing but a close, or a name of its own for it.
        vix = "; a file of VIX values goes to --vix" if missing[-1] == "volume" and len(missing) in (1, 4, 5) else ""
        raise UserError(
            f"{path}: missing column(s) {', '.join(missing)}; there are: {', '.join(names)}; name yours with "
            f"--column NAME={missing[0]}{vix}"
        )
    return places


def with_time(places: Mapping[str, int], header: Sequence[str], first: Sequence[str]) -> dict[str, int]:
    """Return `places` with `time` beside `stamp`, if the first row shows that date and time are in two columns."""
    names = [tidy(cell) for cell in header]
    if "time" in places or len(first) != len(header) or "time" not in names:
        return dict(places)
    time = names.index("time")
    if not TIME_ALONE.fullmatch(first[time].strip()):
        return dict(places)
    if places["stamp"] == time and "date" in names:
        return {**places, "stamp": names.index("date"), "time": time}
    stamp = first[places["stamp"]].strip()
    if places["stamp"] != time and ":" not in stamp and not (stamp.isdigit() and len(stamp) in EPOCH_UNITS):
        return {**places, "time": time}
    return dict(places)


def stamp_text(table: Table, header: Sequence[str] | None, places: Mapping[str, int]) -> Table:
    """Return the stamps alone, date and time joined by a blank, under the name that they have in the file."""
    column = pl.concat_str("stamp", "time", separator=" ") if "time" in places else pl.col("stamp")
    name = tidy(header[places["stamp"]]) if header else "stamp"
    return replace(table, frame=table.frame.select(column.alias(name)))


def _own(path: Path, names: Sequence[str], own: Mapping[str, str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for name, column in own.items():
        if column not in (known := (*COLUMN_NAMES, "date", "time")):
            raise UserError(f"--column {name}={column}: no such column; use one of {', '.join(known)}")
        count = names.count(tidy(name))
        if count != 1:
            there = "is not there" if count == 0 else "is there twice"
            raise UserError(f"{path}: --column {name}={column}: {name} {there}; the columns are: {', '.join(names)}")
        places["stamp" if column == "date" else column] = names.index(tidy(name))
    return places
