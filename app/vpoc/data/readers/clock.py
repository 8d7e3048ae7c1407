"""Determines when bars begin: the time zone of stamps and the side of the bar that they mark, from the daily break."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.bars import DAY_SECONDS, bar_seconds
from vpoc.data.exchange.sessions import AS_OF, RTH_OPEN, ZONE
from vpoc.data.readers.stamps import Written, as_seconds, require_zone
from vpoc.errors import UserError

ZONES = (ZONE, "America/Chicago", "UTC")
"""Where stamps without an offset may come from."""
FIXED_ZONES = ("Etc/GMT+5", "Etc/GMT+6")
"""Fixed clocks that some exports keep all year: UTC-5 ("EST") and UTC-6 ("CST")."""
STAMP_SIDES = ("start", "end")
QUARTER = 900
CLOSED, OPEN = 1050, 1080
"""Minutes: from 17:30 to 18:00 New York the market has been closed in all years; since 2015 it closes at 17:00."""
CLOSES_AT_FIVE = 1_442_808_000
"""2015-09-21 in New York, in seconds since 1970: from then on the market closes at 17:00."""
NEARLY_ALL = 0.9
MAX_BAD_DAYS_IN_A_ROW = 2
"""A holiday and the half day before it; more means that the zone is wrong for a part of the year."""
FEWEST_OPENS = 3
FEWEST_DAYS = 5
MOST = 0.5


@dataclass(frozen=True)
class BarStarts:
    """Starts of bars in seconds since 1970 UTC, the zone and side of the stamps they come from, and their step."""

    ts: Ints
    zone: str
    side: str
    bar_seconds: int


def starts(
    path: Path,
    stamps: Written,
    where: Callable[[int], str],
    *,
    zone: str | None,
    side: str | None,
    documented: str | None,
    option: str = "--zone",
) -> BarStarts:
    """Return when the bars with these stamps begin. `where` returns the place of a row for messages.

    `zone` and `side` ("start" or "end") are what the user says, `documented` the side that this format is known to
    have; messages name the `option` that gives the zone. What is not given is detected from the daily break of the
    market, 17:00 to 18:00 New York, and from the first bar after it, which begins at 18:00. UserError when that is not
    conclusive.
    """
    if zone is not None:
        require_zone(path, zone)
    known = "UTC" if stamps.utc else stamps.zone or zone
    unique = _unique(stamps.seconds)
    step = bar_seconds(unique)
    if known is not None and side is not None:
        found = (known, side)
    else:
        found = _settle(path, unique, step, known, side, documented)
    if zone is not None and known == zone and not stamps.utc:
        _require_fitting(path, unique, step, zone, found[1], option)
    if found[1] == "end" and len(unique) < 2:
        raise UserError(f"{path}: one bar does not show how long it is, so its start is not known; give more bars")
    ts = stamps.seconds if stamps.utc else _all_to_utc(stamps.seconds, found[0], where, option)
    return BarStarts(_begins(ts, step, found[1]), found[0], found[1], step)


def has_break(utc: Ints, step: int = 60) -> bool:
    """Return whether bars of `step` seconds that begin at `utc` leave out 17:30-18:00 New York on nearly all days.

    They must trade before and after it. There may be at most two exceptional days in a row.
    """
    return _share(_quarters(utc), step) is not None


def _settle(
    path: Path, unique: Ints, step: int, known: str | None, side: str | None, documented: str | None
) -> tuple[str, str]:
    zones = (known,) if known else (*ZONES, *FIXED_ZONES)
    sides = (side,) if side else STAMP_SIDES
    fits = _fits(unique, step, zones, sides)
    if not fits and "end" in sides:
        # Bars of the first minutes of an evening are missing now and then.
        fits = _fits(unique, step, zones, ("end",), by_close=True)
    if fits:
        best = [fit for fit in fits if fit[0] == fits[0][0]]
        if len(best) > 1 and documented in STAMP_SIDES:
            best = [fit for fit in best if fit[2] == documented] or best
        if len(best) == 1:
            return best[0][1], best[0][2]
    alone = _by_regular_hours(unique, step, zones, (documented,) if documented and not side else sides)
    if not fits and alone is not None:
        return alone
    zone = known or _zone_alone(unique, step, sides if side else (documented,) if documented else STAMP_SIDES)
    if zone is None or (fits and not known):
        raise UserError(
            f"{path}: the stamps do not say their time zone, and the daily break at 17:00-18:00 New York does "
            f"not give it away; say it with --zone (such as {ZONES[0]} or {ZONES[1]})"
        )
    if side or documented:
        return zone, side or documented or ""
    raise UserError(
        f"{path}: nothing shows whether the stamps are the start or the end of the bars; say it with --stamps start "
        "or --stamps end"
    )


def _fits(
    unique: Ints, step: int, zones: Sequence[str], sides: Sequence[str], *, by_close: bool = False
) -> list[tuple[float, str, str]]:
    """Return share of good days, zone and side of each reading in which the break and the first bar fit; best first.

    Readings with the same times count as one. `by_close`: use the last bar instead of the first.
    """
    found: list[tuple[float, str, str, Ints]] = []
    for side in sides:
        begins = _begins(unique, step, side)
        stamps = unique if by_close else begins
        wall, sharp = _quarters(begins), stamps[stamps % QUARTER == 0]
        for zone in zones:
            quarters = moved(wall, zone)
            share = _share(quarters, step)
            if share is None:
                continue
            shown = moved(sharp, zone)
            if not (_closes(shown) if by_close else _opens(quarters, shown, side)):
                continue
            if not any(np.array_equal(quarters, other) for *_, other in found):
                found.append((share, zone, side, quarters))
    found.sort(key=lambda fit: -fit[0])
    return [fit[:3] for fit in found]


def _by_regular_hours(unique: Ints, step: int, zones: Sequence[str], sides: Sequence[str]) -> tuple[str, str] | None:
    """Return the only zone and side with which nearly every day begins at 09:30 New York.

    No bar may lie outside the day. None when the file has other bars, or not enough days to be certain.
    """
    found: list[tuple[str, str, Ints]] = []
    for side in sides:
        begins = _begins(unique, step, side)
        for zone in zones:
            utc = moved(begins, zone)
            day, minute = _wall_clock(utc)
            if not len(day) or minute.min() < RTH_OPEN or minute.max() >= AS_OF:
                continue
            firsts = minute[np.searchsorted(day, np.unique(day))]
            certain = len(firsts) >= FEWEST_DAYS and np.mean(firsts == RTH_OPEN) >= NEARLY_ALL
            if certain and not any(np.array_equal(utc, other) for *_, other in found):
                found.append((zone, side, utc))
    return found[0][:2] if len(found) == 1 else None


def _zone_alone(unique: Ints, step: int, sides: Sequence[str]) -> str | None:
    """Return the only zone with which the break fits, whenever the first bar after it begins; None if several fit."""
    found: list[tuple[str, Ints]] = []
    for side in sides:
        wall = _quarters(_begins(unique, step, side))
        for zone in (*ZONES, *FIXED_ZONES):
            quarters = moved(wall, zone)
            seen = any(zone == name or np.array_equal(quarters, other) for name, other in found)
            if not seen and _share(quarters, step) is not None:
                found.append((zone, quarters))
    return found[0][0] if len(found) == 1 else None


def _require_fitting(path: Path, unique: Ints, step: int, zone: str, side: str, option: str) -> None:
    """Raise UserError when the break does not fit in the user's zone, but does in another zone."""
    if has_break(moved(_quarters(_begins(unique, step, side)), zone), step):
        return
    others = _fits(unique, step, ZONES, (side,))
    if others:
        raise UserError(
            f"{path}: {option} {zone} does not put the daily break at 17:00-18:00 New York, but {others[0][1]} does; "
            f"correct {option}"
        )


def _begins(stamps: Ints, step: int, side: str) -> Ints:
    """When bars begin whose stamps are of this side."""
    return stamps - step if side == "end" else stamps


def _quarters(begins: Ints) -> Ints:
    """Return the quarters of an hour in which bars begin, as seconds since 1970, sorted and unique."""
    return _unique(begins // QUARTER) * QUARTER


def moved(wall: Ints, zone: str) -> Ints:
    """Return seconds on the clock of `zone`, sorted, in UTC, without times that do not exist or exist twice."""
    return wall if zone == "UTC" else _unique(as_seconds(_to_utc(wall, zone).drop_nulls()))


def _share(quarters: Ints, step: int) -> float | None:
    """Return the share of days in which the break fits; None if the zone is wrong."""
    day, minute = _wall_clock(quarters)
    # A bar that begins before the break must not reach into it, however long it is.
    into = max(CLOSED - step // 60 + 1, 0)
    days = (
        pl.DataFrame({"day": day, "minute": minute})
        .filter((pl.col("day") + 3) % 7 <= 3)
        .group_by("day")
        .agg(
            noon=pl.col("minute").is_between(720, 1019).any(),
            before=pl.col("minute").is_between(960, 1019).any(),
            inside=pl.col("minute").is_between(into, OPEN - 1).any(),
            after=pl.col("minute").is_between(OPEN, OPEN + 59).any(),
        )
        .filter("noon")
        .sort("day")
    )
    good = days.select(pl.col("before") & ~pl.col("inside") & pl.col("after")).to_series()
    share = float(np.mean(good.to_numpy())) if len(good) else 0.0
    if share < NEARLY_ALL:
        return None
    runs = good.rle().struct.unnest()
    return None if (~runs["value"] & (runs["len"] > MAX_BAD_DAYS_IN_A_ROW)).any() else share


def _opens(quarters: Ints, sharp: Ints, side: str) -> bool:
    """Return whether the first bar after the break begins at 18:00; `sharp`: bars that begin at a quarter of an hour.

    A start at 18:00 cannot be the end of a bar, since the market is closed before. That ends are never at 18:00 but one
    bar later could be chance, so it needs more days.
    """
    day, minute = _wall_clock(quarters)
    days = np.unique(day[(minute >= OPEN) & (minute < OPEN + 60)])
    sharp_day, sharp_minute = _wall_clock(sharp)
    at_open = np.unique(sharp_day[sharp_minute == OPEN])
    fewest, share = (FEWEST_OPENS, NEARLY_ALL) if side == "end" else (1, MOST)
    return len(days) >= fewest and len(at_open) >= share * len(days)


def _closes(sharp: Ints) -> bool:
    """Return whether stamps mark the end of the bars: on nearly all days one is at 17:00, and never at 18:00.

    As starts they would be bars of a market that has just closed; that is certain since it closes at 17:00.
    """
    day, minute = _wall_clock(sharp[sharp >= CLOSES_AT_FIVE])
    days = np.unique(day[(minute >= RTH_OPEN) & (minute < AS_OF)])
    at_close = np.unique(day[minute == AS_OF])
    return len(at_close) >= max(FEWEST_DAYS, NEARLY_ALL * len(days)) and not (minute == OPEN).any()


def _wall_clock(utc: Ints) -> tuple[Ints, Ints]:
    """Return the day (since 1970-01-01, a Thursday) and minute of the day in New York."""
    local = pl.from_epoch(pl.Series(utc), "s").dt.replace_time_zone("UTC").dt.convert_time_zone(ZONE)
    wall = as_seconds(local.dt.replace_time_zone(None))
    return wall // DAY_SECONDS, wall % DAY_SECONDS // 60


def _unique(values: Ints) -> Ints:
    """Return `values` sorted and unique; files are usually sorted already."""
    if len(values) > 1 and (np.diff(values) < 0).any():
        values = np.sort(values)
    fresh = np.ones(len(values), dtype=np.bool_)
    fresh[1:] = values[1:] != values[:-1]
    return values[fresh]


def _all_to_utc(seconds: Ints, zone: str, where: Callable[[int], str], option: str) -> Ints:
    utc = _to_utc(seconds, zone)
    if utc.null_count():
        row = int(utc.is_null().arg_max() or 0)
        stamp = np.datetime64(int(seconds[row]), "s")
        raise UserError(f"{where(row)}: {stamp} does not exist, or exists twice, in {zone}; check {option}")
    return as_seconds(utc)


def _to_utc(seconds: Ints, zone: str) -> pl.Series:
    local = pl.from_epoch(pl.Series(seconds, dtype=pl.Int64), "s")
    aware = local.dt.replace_time_zone(zone, ambiguous="null", non_existent="null")
    return aware.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
