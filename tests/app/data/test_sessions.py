import dataclasses

import numpy as np
import pytest

from vpoc.data.bars import load_bars
from vpoc.data.sessions import new_york, split_sessions
from vpoc.errors import UserError


def seconds(stamp):
    return int(np.datetime64(stamp, "s").astype(np.int64))


@pytest.mark.parametrize(
    ("utc", "trade_date", "minute"),
    [
        ("2024-01-07T23:00:00", "2024-01-08", 18 * 60),  # Sunday evening is Monday's
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


def test_a_holiday_has_no_regular_hours(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    holiday = np.ones(len(bars), bool)
    holiday[sessions.start[3] : sessions.stop[3]] = False
    found = split_sessions(bars.take(holiday))
    assert len(found) == len(sessions)
    assert found.start[3] == found.stop[3]
    assert not found.complete[3]
    assert (found.stop - found.start)[4] == 39


def test_a_session_still_trading_is_not_complete(merged):
    """38 of 39 bars are more than 95 %, but the last one may change everything."""
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
    assert sessions.follows.tolist() == list(range(26))
    half_day, holiday, week = (np.ones(len(bars), bool) for _ in range(3))
    half_day[sessions.start[3] + 20 : sessions.stop[3]] = False
    assert split_sessions(bars.take(half_day)).follows.tolist() == [0, 1, 2, 3, *range(22)]
    holiday[sessions.start[3] : sessions.stop[3]] = False
    assert split_sessions(bars.take(holiday)).follows.tolist() == [0, 1, 2, 0, *range(3, 25)]
    week[sessions.stop[3] : sessions.start[8]] = False  # from Friday to the second Monday
    assert split_sessions(bars.take(week)).follows.tolist()[:4] == [0, 1, 2, 3]
    assert split_sessions(bars.take(week)).follows.max() == 17


def test_only_an_unfinished_last_session_is_in_progress(merged):
    bars = load_bars(merged)
    sessions = split_sessions(bars)
    rows = np.arange(len(bars))
    assert not sessions.in_progress
    assert split_sessions(bars.take(rows < sessions.stop[-1] - 10)).in_progress
    assert not split_sessions(bars.take(rows < sessions.start[-1])).in_progress


def test_bars_that_cut_through_the_open_are_refused(merged):
    bars = dataclasses.replace(load_bars(merged), bar_seconds=3600)
    with pytest.raises(UserError, match="30 minutes or a whole part"):
        split_sessions(bars)
