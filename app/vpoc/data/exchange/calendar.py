"""The exchange calendar: regular trading hours (RTH) by date, Globex hours, and roll dates of the ES contract.

NYSE holidays, special closures and half days are in a table, closures.py, which
tests/app/data/exchange/make_closures.py generates with exchange_calendars: that library needs pandas, which is large
and takes half a second to import. From the day it was generated on, the table follows the rules of that day; closures
announced later are missing. CME's hours are rules in this module.

Dates are days since 1970-01-01, minutes are those of the New York day.
"""

from functools import cache

import numpy as np

from vpoc.arrays import Flags, Ints
from vpoc.data.exchange.closures import CLOSES
from vpoc.errors import UserError

FIRST = np.datetime64("1990-01-01")
LAST = np.datetime64("2035-12-31")
"""The table covers these days and those between: the ES contract exists since 1997, daily VIX values begin in 1990."""
FULL_CLOSE = 16 * 60
GLOBEX_OPEN = 18 * 60
HALT = (16 * 60 + 15, 16 * 60 + 30)
"""Minutes without trading before HALT_ENDED (not since trade date 2021-06-28, says pandas_market_calendars)."""
HALT_ENDED = np.datetime64("2021-06-28")
CLOSE_AT_1715 = np.datetime64("2012-11-19")
CLOSE_AT_1700 = np.datetime64("2015-09-21")
"""First trade dates of new Globex hours, according to CME's notices.

Before 2012-11-19 trading continued from 16:30 to 17:30 from Monday to Thursday, for CME's next trade date.
"""
HOLIDAY_HALT = 13 * 60
"""Latest minute at which Globex halts on a holiday of the NYSE (until about 2014 it was 11:30)."""
AFTER_HALF_DAY = 15
"""Minutes that Globex continues after the NYSE's close on a half day."""
MONDAY, FRIDAY = 0, 4


def rth_close(date: Ints, close: int = FULL_CLOSE) -> Ints:
    """Return the minute at which regular trading hours, from 09:30, end on each of `date` [dates]; 0 if there are none.

    `close` (960, or 975 for 16:15) on full days, 780 (13:00; in 1990-92 840) on half days, 0 on weekends, holidays and
    special closures of the NYSE. UserError for a date outside the table.
    """
    minutes = _closes()[_place(date)]
    return np.where(minutes == FULL_CLOSE, close, minutes)


def globex_close(date: Ints) -> Ints:
    """Return the minute at which the daily break begins on each of `date` [dates]; it ends at 18:00.

    17:00 since 2015-09-21 and 17:15 since 2012-11-19; before, 17:30 from Monday to Thursday and 16:15 on Friday.
    """
    early = np.where(_weekday(date) < FRIDAY, 17 * 60 + 30, 16 * 60 + 15)
    late = np.where(date < _day(CLOSE_AT_1700), 17 * 60 + 15, 17 * 60)
    return np.where(date < _day(CLOSE_AT_1715), early, late)


def outside_trading_hours(date: Ints, minute: Ints) -> Flags:
    """Return flags [bars] of the bars that begin when ES is known not to have been traded.

    The arguments are their trade dates and the minutes of their starts. Not traded: weekends, the daily break, the halt
    at 16:15 (until 2021), Christmas and New Year's Day, and from the early halt of a holiday or half day until 18:00.
    UserError for a date outside the table.
    """
    place = _place(date)
    minutes = _closes()[place]
    holiday = minutes == 0
    half_day_halt = np.where(minutes < FULL_CLOSE, minutes + AFTER_HALF_DAY, GLOBEX_OPEN)
    last = np.minimum(globex_close(date), np.where(holiday, HOLIDAY_HALT, half_day_halt))
    pause = (minute >= last) & (minute < GLOBEX_OPEN)
    unknown: Flags = pause | _daily_halt(date, minute) | _globex_closed()[place]
    return unknown


def in_halts(date: Ints, minute: Ints) -> Flags:
    """Return the flags [bars], as above, of bars that begin in the halt at 16:15 or in the one after a half day.

    Synthetic sessions, which all have the same length, have both. Stamps of a wrong time zone also lie elsewhere.
    """
    minutes = _closes()[_place(date)]
    half_day = (minutes > 0) & (minutes < FULL_CLOSE)
    after_it: Flags = half_day & (minute >= minutes + AFTER_HALF_DAY) & (minute < globex_close(date))
    return after_it | _daily_halt(date, minute)


def _daily_halt(date: Ints, minute: Ints) -> Flags:
    halt: Flags = (minute >= HALT[0]) & (minute < HALT[1]) & (date < _day(HALT_ENDED))
    return halt


def roll_dates(first: int, last: int) -> Ints:
    """Return the trade dates from `first` to `last` on which the next contract becomes the main one.

    CME's rule: the Monday of the week in which the contract expires, on the third Friday of March, June, September and
    December. (If that is a holiday, expiry is a day earlier and the Monday stays.)
    """
    ends = np.array([first, last], dtype="datetime64[D]").astype("datetime64[M]")
    months = np.arange(ends[0], ends[1] + 1)
    quarterly = months[months.astype(np.int64) % 3 == 2]
    fridays = np.busday_offset(quarterly, 2, roll="forward", weekmask="Fri").astype(np.int64)
    mondays: Ints = fridays - (FRIDAY - MONDAY)
    return mondays[(mondays >= first) & (mondays <= last)]


def _weekday(date: Ints) -> Ints:
    """Return the weekday, 0 for Monday; 1970-01-01 was a Thursday."""
    return (date + 3) % 7


def _day(stamp: np.datetime64) -> int:
    return int(stamp.astype(np.int64))


def _place(date: Ints) -> Ints:
    """Return the positions of `date` [dates] in the table."""
    place = date - _day(FIRST)
    outside = (place < 0) | (date > _day(LAST))
    if outside.any():
        shown = np.datetime64(int(date[np.argmax(outside)]), "D")
        raise UserError(
            f"{shown}: the trading calendar covers {FIRST} to {LAST}; leave out bars of other days, or use a newer vpoc"
        )
    return place


@cache
def _closes() -> Ints:
    """Return the minute of the NYSE's close [days from FIRST to LAST]."""
    days = np.arange(_day(FIRST), _day(LAST) + 1)
    closes = np.where(_weekday(days) <= FRIDAY, FULL_CLOSE, 0)
    for year, exceptions in CLOSES.items():
        for exception in exceptions.split():
            day, _, minute = exception.partition("=")
            closes[_day(np.datetime64(f"{year}-{day}")) - _day(FIRST)] = int(minute or 0)
    closes.flags.writeable = False
    return closes


@cache
def _globex_closed() -> Flags:
    """Return the flags [days from FIRST to LAST] of weekends, Christmas and New Year's Day as observed."""
    days = np.arange(FIRST, LAST + 1)
    months = days.astype("datetime64[M]")
    month, day = months.astype(np.int64) % 12 + 1, (days - months).astype(np.int64) + 1
    weekday = _weekday(days.astype(np.int64))
    monday, friday = weekday == MONDAY, weekday == FRIDAY
    christmas = (month == 12) & ((day == 25) | ((day == 24) & friday) | ((day == 26) & monday))
    new_year = (month == 1) & ((day == 1) | ((day == 2) & monday))
    closed: Flags = (weekday > FRIDAY) | ((_closes() == 0) & (christmas | new_year))
    return closed
