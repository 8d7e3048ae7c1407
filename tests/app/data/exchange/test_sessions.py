import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from vpoc.data.bars import Bars
from vpoc.data.exchange.selection import chain
from vpoc.data.exchange.sessions import Sessions, new_york, session_dates, split_sessions
from vpoc.data.load import load_bars
from vpoc.errors import UserError


def seconds(stamp):
    return int(np.datetime64(stamp, "s").astype(np.int64))


@pytest.mark.parametrize(
    ("utc", "trade_date", "minute"),
    [
        ("2024-01-07T23:00:00", "2024-01-08", 18 * 60),  # the evening of Sunday belongs to Monday's session
        ("2024-01-08T21:59:00", "2024-01-08", 16 * 60 + 59),
        ("2024-01-08T23:00:00", "2024-01-09", 18 * 60),
        ("2024-07-08T13:30:00", "2024-07-08", 9 * 60 + 30),  # summer time
        ("2024-01-08T14:30:00", "2024-01-08", 9 * 60 + 30),
    ],
)
def test_trade_date_and_new_york_minute(utc, trade_date, minute):
    date, minutes = new_york(np.array([seconds(utc)]))
    assert str(date.astype("datetime64[D]")[0]) == trade_date
    assert minutes.tolist() == [minute]


def test_regular_hours_are_half_open(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    for start, stop in zip(sessions.start, sessions.stop, strict=True):
        minutes = new_york(bars.ts[start:stop])[1]
        assert minutes[0] == 9 * 60 + 30
        assert minutes[-1] == 15 * 60 + 50
        assert len(minutes) == 39


def test_a_session_needs_95_percent_of_its_bars(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    fourth = sessions.start[3]
    one_less, two_less = np.ones(len(bars), bool), np.ones(len(bars), bool)
    one_less[fourth + 5] = False
    two_less[fourth + 5 : fourth + 7] = False
    assert split_sessions(bars.take(one_less)).complete[3]  # 38 of 39
    assert not split_sessions(bars.take(two_less)).complete[3]  # 37 of 39


def without_regular_hours(bars, session):
    sessions = split_sessions(bars)
    rows = np.ones(len(bars), bool)
    rows[sessions.start[session] : sessions.stop[session]] = False
    return bars.take(rows)


def test_a_session_without_its_regular_hours_is_not_complete(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    found = split_sessions(without_regular_hours(bars, 3))
    assert len(found) == len(sessions)
    assert found.start[3] == found.stop[3]
    assert found.end[3] - found.stop[3] == 6
    assert not found.complete[3]
    assert found.contract.tolist() == [0] * 3 + [-1] + [0] * 22
    assert (found.stop - found.start)[4] == 39


def whole_days(first, last, minutes=30):
    """Return bars of all hours that Globex trades on an ordinary day, for every trade date, holidays included."""
    days = np.arange(np.datetime64(first), np.datetime64(last) + 1)
    days = days[np.is_busday(days)].astype(np.int64)
    local = (days * 86_400)[:, None] + np.arange(-6 * 3600, 17 * 3600, minutes * 60)
    stamps = pl.Series(local.ravel() * 1_000_000).cast(pl.Datetime("us")).dt.replace_time_zone("America/New_York")
    ts = stamps.dt.epoch("s").to_numpy()
    one = np.full(len(ts), 16_000)
    return Bars(
        path=Path("synthetic"),
        sha256="",
        ts=ts,
        **dict.fromkeys(("open", "high", "low", "close", "volume"), one),
        vix=np.full(len(ts), 15.0),
        off_grid=np.zeros(len(ts), bool),
        contract=np.zeros_like(ts),
        symbols=(),
        bar_seconds=minutes * 60,
        rows_in_file=len(ts),
    )


def days_of(sessions):
    return [str(day)[5:] for day in sessions.date.astype("datetime64[D]")]


def test_a_holiday_has_no_session_and_its_bars_are_overnight():
    """4 July 2018 was a Wednesday, and the day before it a half day."""
    found = split_sessions(whole_days("2018-07-02", "2018-07-06"))
    assert days_of(found) == ["07-02", "07-03", "07-05", "07-06"]
    assert np.diff(found.number).tolist() == [1, 1, 1]
    assert (found.close // 60).tolist() == [16, 13, 16, 16]
    assert found.expected.tolist() == (found.stop - found.start).tolist() == [13, 7, 13, 13]
    # 46 bars a day, of which 31 are before 09:30.
    assert (found.start - found.first).tolist() == [31, 31, 46 + 31, 31]
    assert (found.end - found.stop).tolist() == [2, 8, 2, 2]
    assert found.complete.all()


def test_summer_time_begins_and_ends():
    for first, last in (("2018-03-08", "2018-03-13"), ("2018-11-01", "2018-11-06")):
        bars = whole_days(first, last)
        found = split_sessions(bars)
        assert (found.stop - found.start).tolist() == [13] * 4
        assert new_york(found.open_utc)[1].tolist() == [9 * 60 + 30] * 4
        assert new_york(found.close_utc)[1].tolist() == [16 * 60] * 4
        assert (bars.ts[found.start] == found.open_utc).all()
        assert np.diff(found.open_utc).max() != 3 * 86_400, "the weekend is an hour longer or shorter"


def test_regular_hours_to_a_quarter_past_four():
    bars = whole_days("2018-07-02", "2018-07-06", 15)
    found = split_sessions(bars, 16 * 60 + 15)
    assert found.expected.tolist() == (found.stop - found.start).tolist() == [27, 14, 27, 27]
    assert found.close.tolist() == [975, 780, 975, 975]
    with pytest.raises(UserError, match="does not divide the regular hours to 16:15; give shorter bars"):
        split_sessions(whole_days("2018-07-02", "2018-07-06"), 16 * 60 + 15)


def test_bars_that_end_after_17_are_of_the_trade_date_but_not_after_its_close():
    bars = whole_days("2018-07-02", "2018-07-06", 15)
    late = np.flatnonzero(new_york(bars.ts)[1] == 16 * 60 + 45)
    moved = dataclasses.replace(bars, ts=bars.ts.copy())
    moved.ts[late] += 300
    found, honest = split_sessions(moved), split_sessions(bars)
    assert (found.end == honest.end - 1).all()
    assert found.first.tolist() == honest.first.tolist()


def test_every_bar_is_of_one_session(summer):
    bars = load_bars(summer)
    sessions = split_sessions(bars)
    date = session_dates(bars.ts)
    ends = np.append(sessions.first[1:], len(bars))
    for place, day in enumerate(sessions.date):
        assert (date[sessions.first[place] : ends[place]] == day).all()
    assert (sessions.first <= sessions.start).all()
    assert (sessions.stop <= sessions.end).all()
    assert (sessions.end <= ends).all()


def test_numbers_are_places_among_all_sessions_of_the_calendar(merged, summer):
    """Sessions are numbered by the calendar: parts of a file number them alike, and a missing session leaves a gap."""
    winter, later = (split_sessions(load_bars(path)) for path in (merged, summer))
    assert np.diff(winter.number).tolist() == [1] * 25
    between = np.busday_count(np.datetime64("2018-01-02"), np.datetime64("2018-06-04"))
    # Martin Luther King Day, Presidents Day, Good Friday and Memorial Day.
    assert later.number[0] - winter.number[0] == between - 4
    bars = load_bars(merged)
    week = np.ones(len(bars), bool)
    week[winter.first[4] : winter.first[8]] = False
    assert np.diff(split_sessions(bars.take(week)).number).tolist() == [1] * 3 + [5] + [1] * 17


def test_sessions_are_taken_and_joined(merged):
    bars = load_bars(merged)
    open_end = split_sessions(bars.take(np.arange(len(bars)) < split_sessions(bars).stop[-1] - 10))
    assert open_end.in_progress
    assert not open_end.take(slice(0, 5)).in_progress
    assert open_end.take(slice(5, None)).in_progress
    assert not open_end.take(open_end.complete).in_progress
    parts = [open_end.take(slice(0, 5)), open_end.take(slice(5, None))]
    joined = Sessions.concatenate(parts)
    assert joined.in_progress
    for field in dataclasses.fields(Sessions):
        assert np.array_equal(getattr(joined, field.name), getattr(open_end, field.name))


def test_trades_are_counted_by_the_minutes_that_have_some():
    """A file of trades has a row for each trade; 371 of the 390 minutes are 95 %."""
    bars = whole_days("2018-07-05", "2018-07-06", 1)
    trades = bars.take(np.repeat(np.arange(len(bars)), 3))
    trades = dataclasses.replace(trades, bar_seconds=0, ts=trades.ts + np.tile([0, 0, 59], len(bars)))
    found = split_sessions(trades)
    assert (found.stop - found.start).tolist() == [1170, 1170]
    assert (found.expected.tolist(), found.found.tolist()) == ([390, 390], [390, 390])
    assert found.complete.all()
    start = int(found.start[0])
    for missing, complete in ((19, True), (20, False)):
        rows = np.ones(len(trades), bool)
        rows[start + 300 : start + 300 + 3 * missing] = False
        fewer = split_sessions(trades.take(rows))
        assert (int(fewer.found[0]), bool(fewer.complete[0])) == (390 - missing, complete)


def test_a_part_of_a_file_is_not_in_progress(merged):
    bars = load_bars(merged)
    part = bars.take(np.arange(len(bars)) < split_sessions(bars).stop[-1] - 1)
    assert split_sessions(part).in_progress
    found = split_sessions(part, continues=True)
    assert not found.in_progress
    assert found.complete[-1], "38 of 39"


def test_bars_beyond_the_calendar_are_refused():
    for year in ("1989", "2036"):
        with pytest.raises(UserError, match=rf"{year}-01-0[12]: the trading calendar covers 1990-01-01 to 2035-12-31"):
            split_sessions(whole_days(f"{year}-01-02", f"{year}-01-03"))


def test_a_session_still_trading_is_not_complete(merged):
    """38 of 39 bars are more than 95 %, but the missing last bar may still change everything."""
    bars = load_bars(merged)
    stop = split_sessions(bars).stop[-1]
    for missing, over in ((1, False), (0, True)):
        found = split_sessions(bars.take(np.arange(len(bars)) < stop - missing))
        assert (bool(found.complete[-1]), found.in_progress) == (over, not over)
    later = np.ones(len(bars), bool)
    later[stop - 1] = False
    found = split_sessions(bars.take(later))
    assert (bool(found.complete[-1]), found.in_progress) == (True, False)


def test_more_bars_than_a_session_has_are_not_complete(merged):
    bars = load_bars(merged)
    start = split_sessions(bars).start[3]
    doubled = np.sort(np.append(np.arange(len(bars)), start))
    found = split_sessions(bars.take(doubled))
    assert found.complete.tolist() == [True] * 3 + [False] + [True] * 22


def test_a_bar_off_the_grid_of_regular_hours_is_refused(merged):
    bars = load_bars(merged)
    start = split_sessions(bars).start
    moved = dataclasses.replace(bars, ts=bars.ts.copy())
    moved.ts[start[3] + 1] += 60
    with pytest.raises(
        UserError, match=r"the bar of 2018-01-05T14:41:00Z does not start a whole number of bars of 600"
    ):
        split_sessions(moved)
    night = dataclasses.replace(bars, ts=bars.ts.copy())
    night.ts[start[3] - 5] += 60
    assert split_sessions(night).complete.all()


def test_sessions_follow_each_other_until_something_is_missing(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    no_rolls = np.zeros(26, dtype=np.int64)
    assert chain(sessions, no_rolls).tolist() == list(range(26))
    assert chain(sessions, np.repeat([0, 1], [10, 16])).tolist() == [*range(10), *range(16)]
    half_day, week = (np.ones(len(bars), bool) for _ in range(2))
    half_day[sessions.start[3] + 20 : sessions.stop[3]] = False
    assert chain(split_sessions(bars.take(half_day)), no_rolls).tolist() == [0, 1, 2, 3, *range(22)]
    assert chain(split_sessions(without_regular_hours(bars, 3)), no_rolls).tolist() == [0, 1, 2, 3, *range(22)]
    week[sessions.first[4] : sessions.first[8]] = False  # the bars from Friday to the second Monday are missing
    assert chain(split_sessions(bars.take(week)), no_rolls[4:]).tolist() == [0, 1, 2, 3, *range(18)]


def test_only_an_unfinished_last_session_is_in_progress(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    rows = np.arange(len(bars))
    assert not sessions.in_progress
    assert split_sessions(bars.take(rows < sessions.stop[-1] - 10)).in_progress
    assert not split_sessions(bars.take(rows < sessions.start[-1])).in_progress


def test_bars_that_cut_through_the_open_are_refused(merged):
    bars = dataclasses.replace(load_bars(merged), bar_seconds=3600)
    with pytest.raises(
        UserError, match="bars are 3600 seconds apart, which does not divide the regular hours to 16:00"
    ):
        split_sessions(bars)
