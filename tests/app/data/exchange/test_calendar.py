import datetime as dt
import runpy
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vpoc.data.exchange.calendar import globex_close, in_halts, outside_trading_hours, roll_dates, rth_close
from vpoc.data.exchange.sessions import new_york
from vpoc.errors import UserError


def days(*texts):
    return np.array(texts, dtype="datetime64[D]").astype(np.int64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # exchange_calendars with pandas 3.1
def test_the_table_is_the_librarys():
    made = runpy.run_path(str(Path(__file__).with_name("make_closures.py")))
    assert made["TABLE"].read_text() == made["closures"]()


@pytest.mark.parametrize(
    ("day", "close"),
    [
        ("2026-03-16", 960),  # a Monday
        ("2026-03-14", 0),
        ("2026-03-15", 0),
        ("2024-11-28", 0),  # Thanksgiving
        ("2024-11-29", 780),
        ("2024-12-24", 780),
        ("2024-12-25", 0),
        ("2021-12-24", 0),  # Christmas on a Saturday
        ("2024-07-03", 780),
        ("2020-07-03", 0),  # Independence Day on a Saturday
        ("2026-07-02", 960),  # no half day before it
        ("2021-06-18", 960),  # Juneteenth is a holiday only since 2022
        ("2022-06-20", 0),
        ("2026-06-19", 0),
        ("2001-09-10", 960),
        ("2001-09-11", 0),
        ("2001-09-14", 0),
        ("2001-09-17", 960),
        ("2012-10-26", 960),
        ("2012-10-29", 0),
        ("2012-10-30", 0),
        ("2012-10-31", 960),
        ("2018-12-05", 0),
        ("2025-01-09", 0),
        ("1999-12-31", 780),
        ("2022-12-26", 0),
        ("2021-12-31", 960),  # New Year's Day on a Saturday is no holiday
    ],
)
def test_named_days(day, close):
    assert rth_close(days(day)) == close


def test_regular_hours_may_end_at_1615():
    assert rth_close(days("2024-11-27", "2024-11-28", "2024-11-29"), close=975).tolist() == [975, 0, 780]


def test_days_outside_the_table_are_refused():
    assert rth_close(days("1990-01-02", "2035-12-31")).tolist() == [960, 960]
    for day in ("1989-12-29", "2036-01-02"):
        with pytest.raises(UserError, match=f"^{day}: the trading calendar covers 1990-01-01 to 2035-12-31; "):
            rth_close(days("2020-01-02", day))


def test_an_answer_is_no_view_of_the_table():
    rth_close(days("2024-11-27"))[:] = 5
    assert rth_close(days("2024-11-27")) == 960


def test_the_globex_day_ended_later_before_2015():
    asked = days("2012-11-15", "2012-11-16", "2012-11-19", "2015-09-18", "2015-09-21")
    assert globex_close(asked).tolist() == [1050, 975, 1035, 1035, 1020]


@pytest.mark.parametrize(
    ("first", "last", "known"),
    [
        ("2013-10-08 09:30", "2013-10-08 16:14", True),
        ("2013-10-08 16:15", "2013-10-08 16:29", False),
        ("2013-10-08 16:30", "2013-10-08 16:59", True),
        ("2013-10-08 17:00", "2013-10-08 17:14", True),  # the bars of 2013
        ("2013-10-08 17:15", "2013-10-08 17:59", False),
        ("2013-10-08 18:00", "2013-10-09 09:29", True),
        ("2016-10-11 17:00", "2016-10-11 17:59", False),
        ("2021-06-25 16:15", "2021-06-25 16:29", False),
        ("2021-06-28 16:15", "2021-06-28 16:29", True),
        ("2011-05-05 17:00", "2011-05-05 17:29", True),
        ("2011-05-06 16:30", "2011-05-06 16:59", False),  # a Friday
        ("2026-03-13 16:00", "2026-03-13 16:59", True),
        ("2026-03-13 18:00", "2026-03-15 17:59", False),  # the weekend
        ("2026-03-15 18:00", "2026-03-16 16:59", True),
        ("2024-05-26 18:00", "2024-05-27 12:59", True),  # Memorial Day
        ("2024-05-27 13:00", "2024-05-27 17:59", False),
        ("2024-05-27 18:00", "2024-05-28 16:59", True),
        ("2024-11-29 12:30", "2024-11-29 13:14", True),  # half day
        ("2024-11-29 13:15", "2024-11-29 17:59", False),
        ("2024-12-24 18:00", "2024-12-25 17:59", False),  # Christmas
        ("2024-12-25 18:00", "2024-12-26 16:59", True),
        ("2022-12-31 18:00", "2023-01-02 17:59", False),  # New Year's Day, observed on Monday
        ("2007-01-02 09:00", "2007-01-02 12:59", True),  # a day of mourning
        ("2021-04-01 18:00", "2021-04-02 09:14", True),  # Good Friday with a morning
        ("1993-07-01 10:00", "1993-07-01 15:59", True),
    ],
)
def test_known_hours(first, last, known):
    minutes = np.arange(np.datetime64(first), np.datetime64(last) + 1).astype("datetime64[ms]")
    local = pl.Series(minutes).dt.replace_time_zone("America/New_York").dt.convert_time_zone("UTC")
    found = outside_trading_hours(*new_york(local.dt.epoch("s").to_numpy()))
    assert found.tolist() == [not known] * len(minutes)


@pytest.mark.parametrize(
    ("first", "last", "halted"),
    [
        ("2018-01-03 16:15", "2018-01-03 16:29", True),
        ("2018-01-03 16:30", "2018-01-04 16:14", False),
        ("2021-06-28 16:15", "2021-06-28 16:29", False),
        ("2018-07-03 13:15", "2018-07-03 16:59", True),  # half day
        ("2018-07-03 17:00", "2018-07-03 17:59", False),  # the daily break
        ("2018-07-04 13:00", "2018-07-04 16:14", False),  # a holiday
    ],
)
def test_halts_are_in_hours_of_trading(first, last, halted):
    minutes = np.arange(np.datetime64(first), np.datetime64(last) + 1).astype("datetime64[ms]")
    local = pl.Series(minutes).dt.replace_time_zone("America/New_York").dt.convert_time_zone("UTC")
    assert in_halts(*new_york(local.dt.epoch("s").to_numpy())).tolist() == [halted] * len(minutes)


def test_rolls():
    found = roll_dates(*days("2025-12-01", "2026-12-31"))
    expected = ["2025-12-15", "2026-03-16", "2026-06-15", "2026-09-14", "2026-12-14"]
    assert found.tolist() == days(*expected).tolist()
    assert roll_dates(*days("2026-03-16", "2026-03-16")).tolist() == days("2026-03-16").tolist()
    assert roll_dates(*days("2026-03-17", "2026-06-14")).tolist() == []


def test_rolls_are_four_days_before_the_third_friday():
    found = roll_dates(*days("1997-01-01", "2035-12-31"))
    assert len(found) == 4 * 39
    for day in found.tolist():
        friday = dt.date(1970, 1, 1) + dt.timedelta(days=day + 4)
        assert (friday.weekday(), friday.month % 3) == (4, 0)
        assert 15 <= friday.day <= 21
