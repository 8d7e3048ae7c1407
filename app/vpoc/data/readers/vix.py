"""Reads VIX values from a daily or an intraday file, with the time when each was published."""

import re
from dataclasses import dataclass, replace
from datetime import time
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Floats, Ints
from vpoc.data.bars import DAY_SECONDS, bar_seconds
from vpoc.data.exchange.sessions import EVENING, ZONE, new_york
from vpoc.data.readers.clock import MOST, QUARTER, ZONES, moved, starts
from vpoc.data.readers.column_names import COLUMN_NAMES, find_columns, stamp_text, tidy, with_time
from vpoc.data.readers.stamps import DATE_FORMATS, DAY_FIRST, MONTH_FIRST, as_seconds, require_years, written
from vpoc.data.readers.text import open_text, read_text
from vpoc.data.text_table import Table, numbers
from vpoc.errors import UserError

MIDNIGHT = re.compile(r"[T ]00:?00(:?00)?(Z|[+-]\d\d:?\d\d)?$")
FRED = "vixcls"
"""Name that FRED's files give the VIX; a day without a value has an empty cell or a point there."""
VALUE_NAMES = (*COLUMN_NAMES["close"], *COLUMN_NAMES["vix"], FRED, "price")
"""Names of the column of values, the most certain first: FRED's and Investing.com's come last."""
SHORTEST_DAY = 23 * 3600
LONGEST_GAP = 4 * DAY_SECONDS
"""A holiday beside a weekend. Values that are mostly further apart are of weeks or months."""
FEWEST_STEPS = 3
MONTH_DAYS = (28, 31)
"""Days from a day of a month to the same day of the next."""
PUBLISHED = time(16, 15)
"""New York time from which the VIX close of a day is known."""
CLOSES = (960, 975)
"""Minutes of the day in New York at which VIX bars may end: 16:00 and 16:15."""
FEWEST_DAYS = 3
ZONE_OPTION = "--vix-zone"


@dataclass(frozen=True)
class Vix:
    """VIX values in points [values], and when each was published: seconds since 1970 UTC, sorted.

    `daily`: whether they are closes of days, not of bars. Exact duplicates are left out.
    """

    published: Ints
    close: Floats
    daily: bool


def read_vix(path: Path, zone: str | None = None, dates: str | None = None) -> Vix:
    """Read days (a date and a close), as of the CBOE, FRED or yfinance, or bars of VIX (a stamp and a close).

    The close of a day is known from 16:15 New York time on, also in a file with the times at which days begin, that of
    a shorter bar at its end; stamps of bars are taken as their starts, which is never too early. `zone` applies to
    stamps of bars without an offset; `dates` says whether month or day comes first if the rows do not show it.
    UserError, with the line, for a date or value that cannot be read, two values for one time, and a value that is not
    above zero; also for a zone in which the days do not end with the VIX's, as they do in another one, and for values
    of weeks or months, whose dates do not say when each was known.
    """
    text = open_text(path)
    if not text.levels:
        raise UserError(f"{path}, line 1: there is no header; put a first line with the names, such as DATE,CLOSE")
    # yfinance names the stamps in the third line of its header.
    header = [text.head[2][0], *text.head[0][1:]] if text.levels == 3 else text.head[0]
    first = text.head[text.levels] if len(text.head) > text.levels else []
    names = [tidy(cell) for cell in header]
    value = next((name for name in VALUE_NAMES if name in names), None)
    if value is None:
        raise UserError(f"{path}: no column with the VIX; there are: {', '.join(names)}; name it close in the file")
    own = None if value in COLUMN_NAMES["close"] else {value: "close"}
    places = with_time(find_columns(path, header, own, ("stamp", "close")), header, first)
    table = read_text(text, {name: place for name, place in places.items() if name != "vix"})
    # No VIX has thousands, so a comma is the decimal point.
    table = replace(table, frame=table.frame.with_columns(pl.col("close").str.replace(",", ".", literal=True)))
    if value == FRED:
        table = replace(table, frame=table.frame.with_columns(pl.col("close").str.replace(r"^\s*\.\s*$", "")))
    close = numbers(table, "close", empty=np.nan if value == FRED else None)
    if np.isnan(close).all():
        raise UserError(f"{path}: there is no VIX in any row; give a file with values")
    if (close <= 0).any():
        row = int(np.flatnonzero(close <= 0)[0])
        raise UserError(f"{table.line(row)}: close is {table.frame['close'][row]}, not above zero; correct the row")
    stamps = stamp_text(table, header, places)
    dates_alone = stamps.frame.to_series().str.strip_chars().str.replace(MIDNIGHT.pattern, "")
    shown = max(dates_alone.drop_nulls(), key=len, default="")
    has_time = ":" in shown or ("time" in places and " " in shown) or (shown.isdigit() and len(shown) > 8)
    published, daily = _of_bars(stamps, zone, dates) if has_time else (_days(stamps, dates), True)
    rows = pl.DataFrame({"row": np.arange(len(close)), "published": published, "close": close})
    values = rows.filter(pl.col("close").is_not_nan())
    unique = values.unique(subset=["published", "close"], keep="first").sort("published", "row")
    conflict = unique.filter(pl.col("published").diff() == 0)
    if conflict.height:
        raise UserError(
            f"{table.line(int(conflict['row'][0]))}: another row has the same {'date' if daily else 'time'} but "
            f"another close ({conflict.height} such rows); keep one of them"
        )
    steps = np.diff(unique["published"].to_numpy())
    if len(steps) >= FEWEST_STEPS and np.median(steps) > LONGEST_GAP:
        days = np.median(steps) / DAY_SECONDS
        raise UserError(
            f"{path}: its values are {days:.0f} days apart: what is known when? Give a file of days or bars"
        )
    return Vix(unique["published"].to_numpy(), unique["close"].to_numpy(), daily)


def _days(table: Table, dates: str | None) -> Ints:
    """Return when the closes of days were published."""
    name = table.frame.columns[0]
    text = table.frame.to_series().str.strip_chars().str.replace(MIDNIGHT.pattern, "")
    read = (text.str.to_date(form, strict=False) for form in DATE_FORMATS)
    readings = sorted((date for date in read if date[0] is not None), key=pl.Series.null_count)
    whole = [date for date in readings if not date.null_count()]
    if len(whole) > 1 and dates is not None:
        whole = whole[:1] if dates == MONTH_FIRST else whole[1:]
    elif len(whole) > 1 and not whole[0].equals(whole[1]):
        shown = _likelier(whole[0], whole[1])
        if shown is None:
            raise UserError(
                f"{table.line(0)}: {text[0]!r} can be read as month and day or as day and month, and no row shows "
                f"which it is; say it with --dates {MONTH_FIRST} or --dates {DAY_FIRST}"
            )
        whole = [shown]
    if not whole:
        wrong = readings[0].is_null() if readings else text.is_not_null()
        row = int(wrong.arg_max() or 0)
        raise UserError(
            f"{table.line(row)}: {name} is {table.frame[name][row]!r}, not like 2018-01-02; correct the row"
        )
    date = whole[0]
    require_years(table, as_seconds(date))
    published: Ints = date.dt.combine(PUBLISHED).dt.replace_time_zone(ZONE).dt.epoch("s").to_numpy()
    return published


def _likelier(one: pl.Series, other: pl.Series) -> pl.Series | None:
    """Return the reading in which dates are days apart, like closes of days, not months; None if both are possible.

    A few days of one month look like a year of months; if they would span several years they are months.
    """
    (days, steps), (months, longer) = sorted(
        ((dates, _steps(dates)) for dates in (one, other)), key=lambda it: it[1].sum()
    )
    if steps.sum() == longer.sum():
        return None
    if ((longer >= MONTH_DAYS[0]) & (longer <= MONTH_DAYS[1])).all():
        return months if steps.max() > MONTH_DAYS[1] else None
    return days


def _steps(dates: pl.Series) -> Ints:
    """Return the days from each date to the next later date."""
    steps: Ints = np.diff(np.unique(dates.to_physical().to_numpy()))
    return steps


def _of_bars(table: Table, zone: str | None, dates: str | None) -> tuple[Ints, bool]:
    """Return when the closes of bars were published, and whether the bars are days."""
    try:
        stamps = written(table)
    except UserError:
        if dates is None:
            raise
        stamps = written(table, dates)
    if not stamps.utc and stamps.zone is None and zone is None:
        raise UserError(
            f"{table.path}: the stamps of the VIX bars do not say their time zone; say it with {ZONE_OPTION}, or write "
            "them as 2018-01-02T14:30:00Z"
        )
    begun = starts(table.path, stamps, table.line, zone=zone, side="start", documented=None, option=ZONE_OPTION)
    steps = np.diff(np.unique(begun.ts))
    # Days may begin an hour earlier or later than the day before; weekends and holidays are missing.
    if len(steps) and steps.min() >= SHORTEST_DAY and np.median(steps) < 2 * DAY_SECONDS:
        return _next_publication(begun.ts), True
    if not stamps.utc and stamps.zone is None and zone is not None:
        _require_close(table.path, np.unique(stamps.seconds), zone)
    return begun.ts + begun.bar_seconds, False


def _require_close(path: Path, wall: Ints, zone: str) -> None:
    """Raise UserError when bars do not end with the VIX's day in the user's zone, but do in another zone.

    The daily break of the bars of ES is no help: those of the VIX may have no bars at night.
    """
    if _end_with_the_day(wall, zone):
        return
    for other in ZONES:
        if _end_with_the_day(wall, other):
            raise UserError(
                f"{path}: {ZONE_OPTION} {zone} does not put the last VIX bar of the days at 16:15 New York, but "
                f"{other} does; correct {ZONE_OPTION}"
            )


def _end_with_the_day(wall: Ints, zone: str) -> bool:
    """Return whether on most days the last bar before the evening is near the VIX's close, with stamps of `zone`."""
    day, minute = new_york(moved(wall, zone))
    by_day = day[minute < EVENING]
    lasts = minute[minute < EVENING][np.searchsorted(by_day, np.unique(by_day), side="right") - 1]
    # Stamps may mark either side of a bar; with a quarter of an hour, no other zone of whole hours fits.
    either = max(bar_seconds(wall), QUARTER) // 60
    near = (lasts >= CLOSES[0] - either) & (lasts <= CLOSES[1] + either)
    return len(lasts) >= FEWEST_DAYS and bool(np.mean(near) > MOST)


def _next_publication(begun: Ints) -> Ints:
    """Return the first time from `begun` on at which the close of a day is published."""
    local = pl.from_epoch(pl.Series(begun), "s").dt.replace_time_zone("UTC").dt.convert_time_zone(ZONE)
    wall = as_seconds(local.dt.replace_time_zone(None)) - (PUBLISHED.hour * 60 + PUBLISHED.minute) * 60
    days = pl.from_epoch(pl.Series(-(-wall // DAY_SECONDS)), "d")
    published: Ints = days.dt.combine(PUBLISHED).dt.replace_time_zone(ZONE).dt.epoch("s").to_numpy()
    return published
