"""Time stamps of vendors' files, in UTC."""

import numpy as np
import polars as pl

from vpoc.data.bars import Ints
from vpoc.data.sessions import ZONE, new_york
from vpoc.data.table import Table, require_years
from vpoc.errors import UserError

STAMP_COLUMNS = ("ts_event", "datetime", "ts", "time")
OPEN = 18 * 60
"""Minute of the New York day at which a session begins."""
ZONES = ("America/New_York", "America/Chicago", "UTC")
"""Where stamps without an offset may come from."""
KNOWN = ("%Y-%m-%dT%H:%M:%S%.fZ", "%Y-%m-%dT%H:%M:%S%.f%:z")
NAIVE = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y%m%dT%H:%M:%S", "%m/%d/%YT%H:%M:%S", "%m/%d/%YT%H:%M")
NEARLY_ALL = 0.9
MAX_BAD_DAYS_IN_A_ROW = 2
"""A holiday and the half day before it; more means that the zone is wrong for a part of the year."""
FEWEST_OPENS = 3


def stamp_column(table: Table) -> str:
    """The name of the stamp column; UserError when there is none."""
    for name in STAMP_COLUMNS:
        if name in table.frame.columns:
            return name
    raise UserError(
        f"{table.path}: no stamp column; there are: {', '.join(table.frame.columns)}; "
        f"needed: one of {', '.join(STAMP_COLUMNS)}"
    )


def utc_stamps(table: Table, zone: str | None) -> tuple[Ints, str]:
    """Stamps [rows] in seconds since 1970 UTC, and the zone they were written in.

    An offset or Z in the stamps decides; otherwise `zone`; otherwise the one of ZONES that puts the daily maintenance
    break at its place. UserError when a stamp cannot be read or the zone cannot be told.
    """
    column = stamp_column(table)
    text = table.frame[column].str.strip_chars().str.replace(r"[ T]+", "T")
    for style in KNOWN:
        if _first_parses(text, style):
            parsed = _parse(table, column, text, style)
            require_years(table, column, parsed)
            return _seconds(parsed.dt.replace_time_zone(None) if style.endswith("Z") else _as_utc(parsed)), "UTC"
    for style in NAIVE:
        if _first_parses(text, style):
            naive = _parse(table, column, text, style)
            require_years(table, column, naive)
            return _from_zone(table, naive, zone)
    raise UserError(
        f"{table.line(0)}: {column} is {table.frame[column][0]!r}, a form of date and time that is not known; "
        "use 2018-01-02T14:30:00Z"
    )


def _from_zone(table: Table, naive: pl.Series, zone: str | None) -> tuple[Ints, str]:
    fitting = [zone] if zone else [name for name in ZONES if has_break(_local_to_utc(naive, name))]
    if len(fitting) != 1:
        raise UserError(
            f"{table.path}: the stamps do not say their time zone, and the daily break at 17:00-18:00 New York does "
            f"not give it away; say it with --zone (such as {ZONES[0]} or {ZONES[1]})"
        )
    utc = _local_to_utc(naive, fitting[0])
    if utc.null_count():
        row = int(utc.is_null().arg_max() or 0)
        raise UserError(
            f"{table.line(row)}: {naive[row]} does not exist, or exists twice, in {fitting[0]}; check --zone"
        )
    return _seconds(utc), fitting[0]


def has_break(utc: pl.Series) -> bool:
    """Whether stamps (UTC, no zone) leave out 17:15-18:00 New York on nearly all days, and trade around it.

    The days on which they do not must not stand in a row of more than two.
    """
    local = utc.drop_nulls().dt.replace_time_zone("UTC").dt.convert_time_zone(ZONE).dt.replace_time_zone(None)
    minute = local.dt.hour().cast(pl.Int32) * 60 + local.dt.minute()
    days = (
        pl.DataFrame({"day": local.dt.date(), "minute": minute})
        .filter(pl.col("day").dt.weekday() <= 4)
        .group_by("day")
        .agg(
            noon=pl.col("minute").is_between(720, 1019).any(),
            before=pl.col("minute").is_between(960, 1019).any(),
            inside=pl.col("minute").is_between(1035, 1079).any(),
            after=pl.col("minute").is_between(1080, 1139).any(),
        )
        .filter("noon")
        .sort("day")
    )
    good = days.select(pl.col("before") & ~pl.col("inside") & pl.col("after")).to_series()
    if len(good) == 0 or np.mean(good.to_numpy()) < NEARLY_ALL:
        return False
    runs = good.rle().struct.unnest()
    return not (~runs["value"] & (runs["len"] > MAX_BAD_DAYS_IN_A_ROW)).any()


def require_starts(table: Table, ts: Ints, seconds: int) -> None:
    """UserError when `ts` [rows], UTC, are the ends of bars of `seconds`: after the break the first is never 18:00."""
    date, minute = new_york(ts)
    since_open = (minute - OPEN) * 60 + ts % 60
    opens = (since_open >= 0) & (since_open < 3600)
    if not opens.any():
        return
    per_day = pl.DataFrame({"date": date[opens], "first": since_open[opens]}).group_by("date").min()
    firsts = per_day["first"].to_numpy()
    if len(firsts) >= FEWEST_OPENS and firsts.min() > 0 and np.mean(firsts == seconds) >= NEARLY_ALL:
        raise UserError(
            f"{table.path}: the first bars after the daily break are stamped 18:00 plus {seconds} seconds New York and "
            "never 18:00, so the stamps look like the END of the bars; give bars stamped with their start, or subtract "
            f"{seconds} seconds from every stamp"
        )


def _first_parses(text: pl.Series, style: str) -> bool:
    return text.head(1).str.to_datetime(style, strict=False).null_count() == 0


def _parse(table: Table, column: str, text: pl.Series, style: str) -> pl.Series:
    parsed = text.str.to_datetime(style, time_unit="us", strict=False)
    if parsed.null_count():
        row = int(parsed.is_null().arg_max() or 0)
        shown = table.frame[column][row]
        raise UserError(f"{table.line(row)}: {column} is {shown!r}, not written like the first row; correct the row")
    return parsed


def _as_utc(aware: pl.Series) -> pl.Series:
    return aware.dt.convert_time_zone("UTC").dt.replace_time_zone(None)


def _local_to_utc(naive: pl.Series, zone: str) -> pl.Series:
    try:
        local = naive.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
    except pl.exceptions.PolarsError as error:
        raise UserError(f"--zone {zone}: no such time zone; use a name such as {ZONES[0]}") from error
    return _as_utc(local)


def _seconds(utc: pl.Series) -> Ints:
    seconds: Ints = utc.dt.epoch("s").to_numpy()
    return seconds
