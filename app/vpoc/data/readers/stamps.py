"""Interprets the stamps of vendors' files."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.columns import YEARS
from vpoc.data.text_table import Table
from vpoc.errors import UserError

MONTH_FIRST, DAY_FIRST = "month-first", "day-first"
DATE_FORMATS = (
    *("%Y-%m-%d", "%Y%m%d", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d"),
    *("%d.%m.%Y", "%m-%d-%Y", "%d-%m-%Y", "%Y.%m.%d", "%d-%b-%Y", "%b %d, %Y"),
)
TIME_FORMATS = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%I:%M:%S%p", "%I:%M%p")
DIGITS_ALONE = {4: ("%H%M",), 6: ("%H%M%S",)}
"""Number of digits of a time without colons -> its form: the longer one would take digits of the date as well."""
EPOCH_UNITS = {9: 1, 10: 1, 12: 10**3, 13: 10**3, 15: 10**6, 16: 10**6, 18: 10**9, 19: 10**9}
"""Number of digits of a count since 1970, for the years 1980 to 2100 -> its units per second."""
CANONICAL = re.compile(r".*T\d\d:\d\d:\d\dZ")
"""Form of the stamps of a merged CSV; the date may still be invalid."""
OFFSET = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
NAMED = re.compile(r" (?!AM$|PM$)(?P<zone>[A-Z][A-Za-z]+(/[A-Z][A-Za-z_/+-]*[0-9]*)?)$")


@dataclass(frozen=True)
class Written:
    """The stamps of a file, in seconds since 1970: in UTC if `utc`, else as the local time in `zone`.

    `zone`: the zone of the clock that the stamps were read from; None if the file does not say.
    """

    seconds: Ints
    utc: bool
    zone: str | None = None


def written(table: Table, dates: str | None = None) -> Written:
    """Read the stamps in the only column of `table`, as text.

    `dates`: "month-first" or "day-first", if a date such as 03/04/2024 can be read in both ways; without it, the rows
    have to show which it is. UserError, with the line, for a stamp that cannot be read or is of another century, and
    when the rows do not show it.
    """
    column = table.frame.columns[0]
    if table.frame[column].head(1).str.contains(r":\d\d,\d").any():
        table = replace(table, frame=table.frame.select(pl.col(column).str.replace(",", ".", literal=True)))
    text = table.frame[column]
    first = (text[0] or "").strip()
    if first.isdigit() and len(first) in EPOCH_UNITS:
        return _epoch(table, column, EPOCH_UNITS[len(first)])
    named = NAMED.search(first)
    if named:
        return _named(table, column, named["zone"])
    form = _form_of(table, text, dates)
    if form is None:
        raise UserError(
            f"{table.line(0)}: {column} is {text[0]!r}, a form of date and time that is not known; "
            "use 2018-01-02T14:30:00Z"
        )
    utc = OFFSET.search(first) is not None
    seconds = as_seconds(_parse(table, column, text, form))
    require_years(table, seconds)
    return Written(seconds, utc, "UTC" if utc else None)


def is_known(stamp: str) -> bool:
    """Return whether `written` can read a stamp of this form, judged without other rows."""
    return (stamp.isdigit() and len(stamp) in EPOCH_UNITS) or bool(_forms(NAMED.sub("", stamp).replace(",", ".")))


def _form_of(table: Table, text: pl.Series, dates: str | None) -> str | None:
    """Return the strptime form of all stamps; None if the first has no known form."""
    forms = _forms((text[0] or "").strip())
    if len(forms) < 2:
        return forms[0] if forms else None
    if dates is not None:
        return forms[0 if dates == MONTH_FIRST else 1]
    shown = {form: text.str.strip_chars().str.to_datetime(form, time_unit="us", strict=False) for form in forms}
    whole = [form for form in forms if not shown[form].null_count()]
    if len(whole) < 2:
        return whole[0] if whole else forms[0]
    ordered = [form for form in whole if shown[form].is_sorted()]
    if len(ordered) == 1:
        return ordered[0]
    raise UserError(
        f"{table.line(0)}: {text[0]!r} can be read as month and day or as day and month, and no row shows which it is; "
        f"say it with --dates {MONTH_FIRST} or --dates {DAY_FIRST}"
    )


def _forms(first: str) -> list[str]:
    """Return the strptime forms of a stamp: one, or two, month first, if month and day can be confused."""
    body = OFFSET.sub("", first)
    ends = "" if body == first else "Z" if first.endswith("Z") else "%:z" if first[-3] == ":" else "%z"
    parted = re.fullmatch(r"(\S+?)(T|\s+)(\S+(?:\s[AaPp][Mm])?)", body)
    if parted is None:
        return []
    _, gap, time = parted.groups()
    whole, dot, _ = time.partition(".")
    fraction = "%.f" if dot else ""
    found: list[str] = []
    for clock in DIGITS_ALONE.get(len(whole), ()) if whole.isdigit() else TIME_FORMATS:
        for day in DATE_FORMATS:
            form = f"{day}{gap}{clock.replace('%S', f'%S{fraction}')}{ends}"
            if _parses(first, form):
                found.append(form)
        if found:
            break
    return found


def _parses(first: str, form: str) -> bool:
    return pl.Series([first]).str.to_datetime(form, strict=False).null_count() == 0


def _parse(table: Table, column: str, text: pl.Series, form: str) -> pl.Series:
    """Return `text` as datetimes without a zone; those with an offset are converted to UTC."""
    parsed = text.str.to_datetime(form, time_unit="us", strict=False)
    if parsed.null_count():
        # A few vendors vary the number of blanks or leave out the fraction of a second from row to row.
        plain = text.str.strip_chars().str.replace(r"(\d)(T|\s+)(\d)", "${1}T${3}")
        loose = re.sub(r"(%[Ydm])(?:T|\s+)(%[HI])", r"\1T\2", form).replace("%.f", "").replace("%S", "%S%.f")
        parsed = plain.str.to_datetime(loose, time_unit="us", strict=False)
    if parsed.null_count():
        raise _unlike_first(table, column, parsed)
    aware = parsed.dtype.time_zone if isinstance(parsed.dtype, pl.Datetime) else None
    return parsed.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if aware else parsed


def _unlike_first(table: Table, column: str, parsed: pl.Series) -> UserError:
    row = int(parsed.is_null().arg_max() or 0)
    shown = table.frame[column][row]
    return UserError(f"{table.line(row)}: {column} is {shown!r}, not written like the first row; correct the row")


def _epoch(table: Table, column: str, units: int) -> Written:
    counts = table.frame[column].str.strip_chars().cast(pl.Int64, strict=False)
    if counts.null_count():
        raise _unlike_first(table, column, counts)
    seconds: Ints = counts.to_numpy() // units
    require_years(table, seconds)
    return Written(seconds, utc=True, zone="UTC")


def _named(table: Table, column: str, zone: str) -> Written:
    """Return the stamps that end with the name of their zone, which must be the same in every row."""
    text = table.frame[column].str.strip_chars()
    same = text.str.ends_with(f" {zone}").fill_null(False)
    if not same.all():
        row = int((~same).arg_max() or 0)
        raise UserError(
            f"{table.line(row)}: {column} is {table.frame[column][row]!r}, but the first row is of {zone}; "
            "give a file of one time zone"
        )
    require_zone(table.path, zone)
    bare = text.str.strip_suffix(f" {zone}")
    # If month and day can be confused, the first form has the month first.
    form = next(iter(_forms(bare[0])), None)
    if form is None:
        raise UserError(f"{table.line(0)}: {column} is {table.frame[column][0]!r}, a form that is not known")
    seconds = as_seconds(_parse(table, column, bare, form))
    require_years(table, seconds)
    return Written(seconds, utc=False, zone=zone)


def require_years(table: Table, seconds: Ints) -> None:
    """As `require_seconds`, of `seconds` that the one column of `table` is of."""
    column = table.frame.to_series()
    require_seconds(seconds, lambda row: f"{table.line(row)}: {column.name} is {column[row]!r}")


def require_seconds(seconds: Ints, where: Callable[[int], str]) -> None:
    """Raise UserError when one of `seconds` since 1970 is not in the years of the contract.

    The message has the place from `where`.
    """
    first, last = (np.datetime64(f"{year}-01-01", "s").astype(np.int64) for year in (YEARS[0], YEARS[1] + 1))
    wrong = (seconds < first) | (seconds >= last)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise UserError(f"{where(row)}, not in the years {YEARS[0]} to {YEARS[1]}; correct the row")


def require_zone(path: Path, zone: str) -> None:
    """Raise UserError unless `zone` is the name of a time zone."""
    try:
        pl.Series([0]).cast(pl.Datetime("us")).dt.replace_time_zone(zone)
    except pl.exceptions.PolarsError as error:
        raise UserError(f"{path}: {zone}: no such time zone; use a name such as America/New_York") from error


def as_seconds(stamps: pl.Series) -> Ints:
    """Return the datetimes [rows] as seconds since 1970, with fractions cut off."""
    seconds: Ints = stamps.dt.epoch("s").to_numpy()
    return seconds
