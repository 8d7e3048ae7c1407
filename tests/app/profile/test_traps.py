"""Tests of mistakes that other programs, or an earlier version of this one, really made."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
from oracle.app import built, frame_of, merged_2026, read_merged
from oracle.market import calendar, market, regular, synthetic
from oracle.profile import Bar
from oracle.sessions import local, split, utc

from vpoc.profile.levels import find_levels
from vpoc.profile.profile import Profile, levels_of, profile_of

KINDS = (("bar", "close"), ("session", "close"), ("session", "open"))


def profile_at(prices, tick):
    """Return the profile of (price, volume) pairs; the rows between them are empty."""
    ticks = {round(price / tick): volume for price, volume in prices}
    rows = [ticks.get(row, 0) for row in range(min(ticks), max(ticks) + 1)]
    return Profile(min(ticks), np.array(rows))


def levels(profile, method):
    found = levels_of(profile, method)
    return found.val[0], found.vpoc[0], found.vah[0]


@pytest.mark.parametrize("method", ["two_row", "one_row"])
def test_a_gap_is_not_stepped_over(method):
    """12.6 of 18 are needed: the empty rows above lose to the 2 below, then only the way up through the gap is left."""
    assert levels(profile_at([(100, 2), (100.25, 10), (200, 6)], 0.25), method) == (400, 401, 800)
    # 11.9 of 17 are needed and reached with the 2 below. If the rows were neighbours, the 5 at 200 would have won.
    assert levels(profile_at([(100, 2), (100.25, 10), (200, 5)], 0.25), method) == (400, 401, 401)


@pytest.mark.parametrize(("method", "vah"), [("two_row", 103), ("one_row", 102)])
def test_a_far_print_makes_no_value_area_of_400_ticks(method, vah):
    """14.7 of 21 are needed: 10 at the VPOC, 4 below and 1 above."""
    assert levels(profile_at([(100, 4), (101, 10), (102, 1), (500, 6)], 1), method) == (100, 101, vah)


@pytest.mark.parametrize("method", ["two_row", "one_row"])
def test_padding_does_not_lift_the_value_area_above_the_high(method):
    """The profile is padded beside a wide one. No rows above its VPOC must lose to two empty rows below it."""
    matrix = np.zeros((2, 40), dtype=np.int64)
    matrix[0, 10:14] = 4, 0, 0, 5
    matrix[1] = 7
    found = find_levels(matrix, np.array([10, 0]), np.array([13, 39]), np.array([100, 100]), method)
    assert (found.val[0], found.vpoc[0], found.vah[0]) == (110, 113, 113)
    assert found.area_volume[0] == 9


def test_the_61st_minute_is_not_of_the_initial_balance():
    bars = synthetic(1, 22, 1, night=0)
    last = regular(bars, dt.date(2025, 11, 18))
    assert len(last) == 390
    for i in last:
        bars[i] = bars[i]._replace(open=16_000, high=16_000, low=16_000, close=16_000)
    bars[last[59]] = bars[last[59]]._replace(high=16_007)
    bars[last[60]] = bars[last[60]]._replace(high=16_050, low=15_980)
    frame = built(market(bars, 1), "bar").filter(pl.col("trade_date") == dt.date(2025, 11, 18))
    names = ("ib_range", "ext_up", "ext_dn")
    assert frame.select(names).row(59) == (7, 0, 0)
    assert frame.select(names).row(60) == (7, 43, 20)
    assert frame.select(names).row(389) == (7, 43, 20)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_bars_after_1700_of_2013_change_nothing(rows, as_of):
    """Until 2015 Globex traded until 17:15: those bars belong to the day, but a row is as of 17:00."""
    bars = synthetic(4, 23, 5, first=dt.date(2013, 9, 3), night=1)
    late = [
        Bar(utc(date, minute), 16_000, 20_000, 15_000, 16_000, 10**6, 99.0)
        for date in sorted({local(bar.ts).date() for bar in bars if local(bar.ts).hour == 12})
        for minute in (17 * 60, 17 * 60 + 5, 17 * 60 + 10)
    ]
    assert len(late) == 3 * 23
    before = built(market(bars, 5), rows, as_of)
    assert built(market(sorted([*bars, *late]), 5), rows, as_of).equals(before)


@pytest.mark.real_data
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_the_roll_of_march_2026(rows, as_of, real_data, tmp_path_factory):
    """Prices do not jump at it. From Monday of the expiry week on, a row needs five sessions of the new contract."""
    path = merged_2026(real_data, tmp_path_factory)
    first = [frame_of(path, rows, as_of, rolls=rolls, lookback=20)["trade_date"][0] for rolls in ("none", "calendar")]
    assert first == [dt.date(2026, 3, 17), dt.date(2026, 3, 23)]


@pytest.mark.real_data
@pytest.mark.parametrize(("placement", "least", "most"), [("uniform", 0, 1), ("close", 42, 42)])
def test_the_vpoc_is_not_the_last_close(placement, least, most, real_data, tmp_path_factory):
    """The file has 50 sessions, all those of the NYSE from 17 February to 28 April 2026, and each is complete."""
    bars = read_merged(merged_2026(real_data, tmp_path_factory))
    sessions = [session for session in split(bars, calendar, 300) if session.rth]
    assert len(sessions) == 50
    assert all(session.complete for session in sessions)
    same = 0
    for session in sessions:
        columns = zip(*[(bar.low, bar.high, bar.close, bar.volume) for bar in session.rth], strict=True)
        profile = profile_of(*(np.array(column) for column in columns), placement=placement)
        assert int(profile.volume.sum()) == sum(bar.volume for bar in session.rth)
        same += levels_of(profile).vpoc[0] == session.rth[-1].close
    assert least <= same <= most
