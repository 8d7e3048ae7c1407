"""Trading sessions: assigns bars to trade dates and to regular trading hours (RTH)."""

from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from vpoc.arrays import Flags, Ints
from vpoc.data.bars import DAY_SECONDS, Bars
from vpoc.data.exchange.calendar import FIRST, LAST, rth_close
from vpoc.errors import UserError

ZONE = "America/New_York"
RTH_OPEN = 9 * 60 + 30
RTH_CLOSE = 16 * 60
RTH_MINUTES = RTH_CLOSE - RTH_OPEN
AS_OF = 17 * 60
"""New York minute at which all facts of a session are known; bars that end later do not belong to them."""
EVENING = 18 * 60
COMPLETE_SHARE = 0.95
LONGEST_CLOSURE = 14
"""Calendar days; the exchange was never closed for this long."""


@dataclass(frozen=True)
class Sessions:
    """Sessions in order of trade date, those with at least one bar; every array is [sessions].

    `date`: trade date, days since 1970-01-01.
    `number`: its position among all sessions of the calendar.
    `close`: New York minute at which RTH ends.
    `open_utc`, `close_utc`: when RTH begins and ends, seconds since 1970.
    `first`, `start`, `stop`, `end`: rows of the Bars. `first`..`start`-1 are overnight, with those of holidays before;
    `start`..`stop`-1 are RTH; `stop`..`end`-1 come after RTH and end by 17:00.
    `expected`: RTH bars of a full session.
    `found`: RTH bars that are there (minutes with a trade, if rows are trades).
    `complete`: whether RTH is over, and 95 % of its bars are there and of one contract.
    `contract`: of the first RTH bar, -1 without any.
    `mixed`: whether RTH has bars of several contracts.
    `in_progress`: whether the file ends with an RTH bar of the last session that ends before the close.
    """

    date: Ints
    number: Ints
    close: Ints
    open_utc: Ints
    close_utc: Ints
    first: Ints
    start: Ints
    stop: Ints
    end: Ints
    expected: Ints
    found: Ints
    complete: Flags
    contract: Ints
    mixed: Flags
    in_progress: bool

    def __len__(self) -> int:
        return len(self.date)

    @property
    def without_overnight(self) -> Flags:
        """Flags [sessions] of the sessions without bars before RTH."""
        none: Flags = self.first == self.start
        return none

    @property
    def without_evening(self) -> Flags:
        """Flags [sessions] of the sessions without bars after RTH that end by 17:00."""
        none: Flags = self.stop == self.end
        return none

    def take(self, keep: Flags | Ints | slice) -> "Sessions":
        """Return the sessions selected by `keep`; `in_progress` stays true only if the last one is kept."""
        last = np.zeros(len(self), dtype=np.bool_)
        last[-1:] = True
        arrays = {f.name: getattr(self, f.name)[keep] for f in fields(self) if f.name != "in_progress"}
        return replace(self, in_progress=self.in_progress and bool(last[keep].any()), **arrays)

    @staticmethod
    def concatenate(parts: "list[Sessions]") -> "Sessions":
        """Return the sessions of all `parts`, in their order; their row numbers are no longer meaningful."""
        names = [f.name for f in fields(Sessions) if f.name != "in_progress"]
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return Sessions(**arrays, in_progress=parts[-1].in_progress)


def split_sessions(bars: Bars, close: int = RTH_CLOSE, *, continues: bool = False) -> Sessions:
    """Return the sessions of the sorted `bars`: trade date = date(New York time + 6 h), RTH = [09:30, `close`).

    A half day ends at 13:00, according to the calendar. Bars of trade dates without RTH count as overnight of the next
    session. `continues`: whether more sessions of the file follow. UserError when the bar interval does not divide RTH
    and 30 minutes, or a bar of RTH does not start a whole number of intervals after 09:30, because the open or the
    close would cut bars.
    """
    step = bars.bar_seconds or 60
    if 1800 % step or (close - RTH_OPEN) * 60 % step:
        raise UserError(
            f"{bars.path}: bars are {step} seconds apart, which does not divide the regular hours to "
            f"{close // 60}:{close % 60:02}; give shorter bars (1 minute is best)"
        )
    try:
        date, number, closes, before = _calendar(bars.ts[[0, -1]], close)
    except UserError as error:
        raise UserError(f"{bars.path}: {error}") from error
    first = np.searchsorted(bars.ts, before)
    there = first < np.append(first[1:], len(bars))
    date, number, closes, first = date[there], number[there], closes[there], first[there]
    opens, ends = _utc(date, np.full_like(date, RTH_OPEN)), _utc(date, closes)
    start, stop = np.searchsorted(bars.ts, opens), np.searchsorted(bars.ts, ends)
    end = np.searchsorted(bars.ts, _utc(date, np.full_like(date, AS_OF)) - bars.bar_seconds, side="right")
    found = stop - start
    if bars.bar_seconds:
        _require_grid(bars, start, stop, opens)
    else:
        found = _minutes_with_rows(bars.ts, start, stop)
    expected = (closes - RTH_OPEN) * 60 // step
    complete = (found >= COMPLETE_SHARE * expected) & (found <= expected)
    last_end = int(bars.ts[-1]) + step
    in_progress = not continues and bool(stop[-1] == len(bars) and stop[-1] > start[-1] and last_end < ends[-1])
    complete[-1] &= not in_progress
    mixed = _mixed(bars.contract, start, stop)
    return Sessions(
        date=date,
        number=number,
        close=closes,
        open_utc=opens,
        close_utc=ends,
        first=first,
        start=start,
        stop=stop,
        end=np.maximum(end, stop),
        expected=expected,
        found=found,
        complete=complete & ~mixed,
        contract=np.where(stop > start, bars.contract[np.minimum(start, len(bars) - 1)], -1),
        mixed=mixed,
        in_progress=in_progress,
    )


def session_dates(ts: Ints) -> Ints:
    """Return the trade date [rows] of the session that each bar belongs to, for sorted stamps in UTC seconds."""
    date, _, _, before = _calendar(ts[[0, -1]], RTH_CLOSE)
    return date[np.searchsorted(before, ts, side="right") - 1]


def month_starts(ts: Ints) -> Ints:
    """Return the rows at which calendar months of trade dates begin, 0 first.

    `ts`: at least one sorted stamp, in UTC seconds.
    UserError for stamps outside the calendar.
    """
    date, _, _, before = _calendar(ts[[0, -1]], RTH_CLOSE)
    months = date.astype("datetime64[D]").astype("datetime64[M]")
    rows: Ints = np.searchsorted(ts, before[1:][months[1:] != months[:-1]])
    return np.unique(np.concatenate([[0], rows[rows < len(ts)]]))


def _calendar(span: Ints, close: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return all sessions of the calendar that bars between these two stamps can belong to.

    Returns trade date, position among all sessions, the minute RTH ends, and when the evening before begins (seconds
    since 1970 UTC).
    """
    first, last = int(FIRST.astype(np.int64)), int(LAST.astype(np.int64))
    # This raises for bars outside the table.
    rth_close(span // DAY_SECONDS)
    # Count positions from the first session of the table, so that parts of a file agree on them.
    days = np.arange(first, min(last, int(span[1]) // DAY_SECONDS + LONGEST_CLOSURE) + 1)
    closes = rth_close(days, close)
    date, closes = days[closes > 0], closes[closes > 0]
    number = np.arange(len(date))
    # Compute the beginnings only for sessions near the bars, because that takes time.
    near = slice(int(np.searchsorted(date, int(span[0]) // DAY_SECONDS - 2 * LONGEST_CLOSURE)), None)
    date, number, closes = date[near], number[near], closes[near]
    begins = _utc(date, np.full_like(date, EVENING))
    # A session begins in the evening of the previous trade date.
    date, number, closes, begins = date[1:], number[1:], closes[1:], begins[:-1]
    inside = slice(
        max(int(np.searchsorted(begins, span[0], side="right")) - 1, 0),
        int(np.searchsorted(begins, span[1], side="right")),
    )
    return date[inside], number[inside], closes[inside], begins[inside]


def _utc(date: Ints, minute: Ints) -> Ints:
    """Return the seconds since 1970 UTC of New York minutes (02:00 or later) on dates [n] of the calendar."""
    utc: Ints = _noons()[date - int(FIRST.astype(np.int64))] - DAY_SECONDS // 2 + minute * 60
    return utc


@cache
def _noons() -> Ints:
    """Return the seconds since 1970 UTC of noon in New York, for every date of the calendar."""
    import polars as pl  # noqa: PLC0415 - who only names sessions needs no polars

    date = np.arange(FIRST, LAST + 1).astype(np.int64)
    noon = (
        pl.Series((date * DAY_SECONDS + DAY_SECONDS // 2) * 1_000_000)
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone(ZONE)
    )
    utc: Ints = noon.dt.epoch("s").to_numpy()
    return utc


def _minutes_with_rows(ts: Ints, start: Ints, stop: Ints) -> Ints:
    minute = ts // 60
    fresh = np.concatenate([[1], minute[1:] != minute[:-1]]).cumsum()
    last = np.maximum(stop - 1, 0)
    return np.where(stop > start, fresh[last] - fresh[np.minimum(start, len(ts) - 1)] + 1, 0)


def _mixed(contract: Ints, start: Ints, stop: Ints) -> Flags:
    """Return whether the contract changes among the bars `start`..`stop`-1 [sessions]; not where there are none."""
    changes = np.concatenate([[0], np.cumsum(contract[1:] != contract[:-1])])
    mixed: Flags = changes[np.maximum(stop - 1, 0)] > changes[np.minimum(start, len(contract) - 1)]
    return mixed


def _require_grid(bars: Bars, start: Ints, stop: Ints, opens: Ints) -> None:
    rows = ranges(start, stop)
    astray = (bars.ts[rows] - np.repeat(opens, stop - start)) % bars.bar_seconds != 0
    if astray.any():
        stamp = np.datetime64(int(bars.ts[rows[np.argmax(astray)]]), "s")
        raise UserError(
            f"{bars.path}: the bar of {stamp}Z does not start a whole number of bars of {bars.bar_seconds} seconds "
            f"after 09:30 New York ({int(astray.sum())} such bars); give bars of one interval, stamped with their start"
        )


def ranges(start: Ints, stop: Ints) -> Ints:
    """Return the numbers start..stop-1 of each pair, concatenated."""
    sizes = stop - start
    before = np.cumsum(sizes) - sizes
    return np.repeat(start - before, sizes) + np.arange(int(sizes.sum()))


def day(date: int) -> str:
    """Return a trade date (days since 1970-01-01) in the form 2026-03-10."""
    return str(np.datetime64(int(date), "D"))


def new_york(ts: Ints) -> tuple[Ints, Ints]:
    """Return the trade date (days since 1970-01-01) and the minute of the New York day, both [rows].

    `ts`: stamps in UTC seconds.
    """
    import polars as pl  # noqa: PLC0415

    stamps = pl.Series(ts * 1_000_000).cast(pl.Datetime("us", "UTC"))
    local = stamps.dt.convert_time_zone(ZONE).dt.replace_time_zone(None)
    date = local.dt.offset_by("6h").dt.date().cast(pl.Int64).to_numpy()
    minute = (local.dt.hour().cast(pl.Int64) * 60 + local.dt.minute().cast(pl.Int64)).to_numpy()
    return date, minute
