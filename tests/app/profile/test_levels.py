"""Profiles against an oracle in plain Python integers, written from the definitions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpoc.data.bars import Bars
from vpoc.data.sessions import Sessions
from vpoc.errors import UserError
from vpoc.profile.levels import Levels, find_levels
from vpoc.profile.sessions import developing_levels, session_levels

PRICE = 16_000


def oracle_histogram(bars):
    histogram = {}
    for low, high, close, volume in bars:
        n = high - low + 1
        share, left = divmod(volume, n)
        start = min(max(close - left // 2, low), high - left + 1)
        for tick in range(low, high + 1):
            histogram[tick] = histogram.get(tick, 0) + share + (1 if start <= tick < start + left else 0)
    return [histogram.get(tick, 0) for tick in range(min(histogram), max(histogram) + 1)], min(histogram)


def oracle_levels(rows, lowest):
    middle = len(rows) - 1
    vpoc = min(range(len(rows)), key=lambda k: (-rows[k], abs(2 * k - middle), k))
    top = bottom = vpoc
    area, total = rows[vpoc], sum(rows)
    while 10 * area < 7 * total:
        above, below = rows[top + 1 : top + 3], rows[max(0, bottom - 2) : bottom]
        gain_above = sum(above) if above else -1
        gain_below = sum(below) if below else -1
        if gain_above >= gain_below:
            top += len(above)
            area += gain_above
        else:
            bottom -= len(below)
            area += gain_below
    return (lowest + vpoc, lowest + top, lowest + bottom, rows[vpoc], area, total)


def as_tuples(levels: Levels):
    columns = (levels.vpoc, levels.vah, levels.val, levels.vpoc_volume, levels.area_volume, levels.volume)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def as_bars(sessions):
    rows = [bar for session in sessions for bar in session]
    low, high, close, volume = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    sizes = np.array([len(session) for session in sessions])
    stop = np.cumsum(sizes)
    bars = Bars(
        path=Path("made-up"),
        sha256="",
        ts=np.arange(len(rows)) * 60,
        open=close,
        high=high,
        low=low,
        close=close,
        volume=volume,
        vix=np.full(len(rows), np.nan),
        off_grid=np.zeros(len(rows), bool),
        symbol=None,
        bar_seconds=60,
        rows_in_file=len(rows),
    )
    found = Sessions(
        date=np.arange(len(sessions)),
        start=stop - sizes,
        stop=stop,
        complete=np.ones(len(sessions), bool),
        follows=np.arange(len(sessions)),
        expected=390,
        in_progress=False,
    )
    return bars, found


@st.composite
def a_bar(draw):
    low = PRICE + draw(st.integers(-15, 15))
    high = low + draw(st.integers(0, 12))
    # Small volumes make ties and empty rows; the largest still sum to less than 2^63.
    volume = draw(st.one_of(st.integers(0, 20), st.integers(0, 2**53)))
    return low, high, draw(st.integers(low, high)), volume


many_sessions = st.lists(st.lists(a_bar(), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(many_sessions, st.integers(1, 6))
def test_sessions_agree_with_the_oracle(sessions, chunk_size):
    bars, found = as_bars(sessions)
    levels = Levels.concatenate(list(session_levels(bars, found, chunk_size)))
    assert as_tuples(levels) == [oracle_levels(*oracle_histogram(session)) for session in sessions]


@settings(max_examples=300, deadline=None)
@given(many_sessions, st.integers(1, 6))
def test_developing_profiles_agree_with_the_oracle(sessions, chunk_size):
    bars, found = as_bars(sessions)
    levels = Levels.concatenate(list(developing_levels(bars, found, chunk_size)))
    assert as_tuples(levels) == [
        oracle_levels(*oracle_histogram(session[: i + 1])) for session in sessions for i in range(len(session))
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(0, 3))
def test_ragged_histograms_in_one_padded_matrix(profiles, before):
    width = before + max(len(rows) for rows in profiles) + 2
    matrix = np.zeros((len(profiles), width), dtype=np.int64)
    for i, rows in enumerate(profiles):
        matrix[i, before : before + len(rows)] = rows
    first = np.full(len(profiles), before)
    last = np.array([before + len(rows) - 1 for rows in profiles])
    levels = find_levels(matrix, first, last, np.zeros(len(profiles), dtype=np.int64))
    assert as_tuples(levels) == [oracle_levels(rows, before) for rows in profiles]


def levels_of(traded):
    """VPOC, VAH and VAL, in points, of volume that traded at single prices; the rows between are empty."""
    lowest = int(min(price for price, _ in traded) * 4)
    rows = [0] * (int(max(price for price, _ in traded) * 4) - lowest + 1)
    for price, volume in traded:
        rows[int(price * 4) - lowest] = volume
    one = np.zeros(1, dtype=np.int64)
    levels = find_levels(np.array([rows]), one, one + len(rows) - 1, one + lowest)
    assert as_tuples(levels) == [oracle_levels(rows, lowest)]
    return levels.vpoc[0] / 4, levels.vah[0] / 4, levels.val[0] / 4


def test_a_gap_of_untraded_rows_is_not_stepped_over():
    # Of 18, 12.6 are needed. The two rows above are empty and lose against the 2 below; that makes 12, nothing is left
    # below, and only the climb through the gap finds the rest.
    assert levels_of([(100, 2), (100.25, 10), (200, 6)]) == (100.25, 200, 100)
    # Of 17, 11.9 are needed: the area ends before the gap. Taken as neighbours, 5 at 200 would have won against 2.
    assert levels_of([(100, 2), (100.25, 10), (200, 5)]) == (100.25, 100.25, 100)


def test_a_far_print_does_not_make_a_value_area_of_400_ticks():
    # Ticks 100, 101, 102 and 500, of which 14.7 of 21 are needed: 10, then 4 below beats 1 above, then above.
    assert levels_of([(25, 4), (25.25, 10), (25.5, 1), (125, 6)]) == (25.25, 25.75, 25)


def test_an_exhausted_side_loses_against_an_empty_row():
    assert levels_of([(100, 5), (101, 4)]) == (100, 101, 100)


def test_padding_does_not_lift_the_area_above_the_session_high():
    narrow = [(PRICE, PRICE, PRICE, 5), (PRICE + 1, PRICE + 1, PRICE + 1, 5)]
    wide = [(PRICE, PRICE + 50, PRICE, 100)]
    bars, found = as_bars([narrow, wide])
    levels = next(session_levels(bars, found, 2))
    assert levels.vah[0] <= PRICE + 1
    assert levels.val[0] == PRICE


def test_ties_go_to_the_middle_then_to_the_lower_price():
    assert levels_of([(100, 5), (101, 5), (104, 1)])[0] == 101
    assert levels_of([(100, 5), (101, 1), (102, 5)])[0] == 100


def test_the_share_of_an_enormous_volume_does_not_overflow():
    rows = [2**60, 2**61, 2**60, 2**60]
    one = np.zeros(1, dtype=np.int64)
    assert as_tuples(find_levels(np.array([rows]), one, one + 3, one)) == [oracle_levels(rows, 0)]


def test_no_volume_at_all():
    bars, found = as_bars([[(PRICE, PRICE + 4, PRICE, 0)]])
    assert as_tuples(next(session_levels(bars, found, 1))) == [(PRICE + 2, PRICE + 2, PRICE + 2, 0, 0, 0)]


def test_a_wrong_print_is_refused_before_it_fills_the_memory():
    bars, found = as_bars([[(PRICE, PRICE, PRICE, 1), (PRICE * 10, PRICE * 10, PRICE * 10, 1)]])
    with pytest.raises(UserError, match="high more than half above its low"):
        next(session_levels(bars, found, 1))
