"""Split sessions by brute force: one bar at a time, New York time by zoneinfo, trading hours by a function of the date.

`calendar(date)` returns the minute of the New York day at which regular trading hours (RTH) end, or None without RTH.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from zoneinfo import ZoneInfo

from oracle.profile import Bar

NEW_YORK = ZoneInfo("America/New_York")
OPEN = 9 * 60 + 30
DAY_END = 17 * 60

Calendar = Callable[[dt.date], "int | None"]


@dataclass
class Session:
    """A session; `close`: the minute at which RTH ends; `bars`: all bars of the trade date, in order."""

    date: dt.date
    close: int
    bars: list[Bar] = field(default_factory=list)
    overnight: list[Bar] = field(default_factory=list)
    rth: list[Bar] = field(default_factory=list)
    post: list[Bar] = field(default_factory=list)
    over: bool = False
    complete: bool = False

    @property
    def high(self) -> int:
        return max(bar.high for bar in self.rth)

    @property
    def low(self) -> int:
        return min(bar.low for bar in self.rth)


def local(ts):
    """Return the naive New York time of a stamp in UTC seconds."""
    return dt.datetime.fromtimestamp(ts, NEW_YORK).replace(tzinfo=None)


@cache
def utc(date, minute):
    """Return the UTC seconds of a minute of a New York day; the minute may be negative or beyond the day."""
    naive = dt.datetime.combine(date, dt.time()) + dt.timedelta(minutes=minute)
    return int(naive.replace(tzinfo=NEW_YORK).timestamp())


def trade_date(ts):
    return (local(ts) + dt.timedelta(hours=6)).date()


def session_date(ts, calendar):
    """Return the trade date of a stamp, or the next date with regular hours if that date has none."""
    date = trade_date(ts)
    while calendar(date) is None:
        date += dt.timedelta(days=1)
    return date


def next_session(date, calendar):
    date += dt.timedelta(days=1)
    while calendar(date) is None:
        date += dt.timedelta(days=1)
    return date


def split(bars, calendar, bar_seconds):
    """Return the sessions that have bars, in order.

    With `bar_seconds` 0 every row is a trade, and completeness is the share of minutes that have a trade.
    """
    found: dict[dt.date, Session] = {}
    for bar in bars:
        date = session_date(bar.ts, calendar)
        session = found.setdefault(date, Session(date, calendar(date)))
        session.bars.append(bar)
        if bar.ts < utc(date, OPEN):
            session.overnight.append(bar)
        elif bar.ts < utc(date, session.close):
            session.rth.append(bar)
        elif bar.ts + bar_seconds <= utc(date, DAY_END):
            session.post.append(bar)
    step = bar_seconds or 60
    end = max(bar.ts for bar in bars) // step * step + step
    for session in found.values():
        expected = (session.close - OPEN) * 60 // step
        there = len({bar.ts // step for bar in session.rth})
        session.over = end >= utc(session.date, session.close)
        session.complete = session.over and 100 * there >= 95 * expected
    return [found[date] for date in sorted(found)]
