"""Profiles against an oracle in plain Python integers, written from the definitions."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vpoc.data.bars import Bars
from vpoc.data.sessions import Sessions
from vpoc.errors import UserError
from vpoc.profile import moves
from vpoc.profile.levels import Levels, find_levels
from vpoc.profile.moves import last_moves
from vpoc.profile.session_profiles import brackets, developing_profiles, rth_bars, session_levels, session_profiles

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


def oracle_levels(rows, lowest, step=2):
    middle = len(rows) - 1
    vpoc = min(range(len(rows)), key=lambda k: (-rows[k], abs(2 * k - middle), k))
    top = bottom = vpoc
    area, total = rows[vpoc], sum(rows)
    while 10 * area < 7 * total:
        above, below = rows[top + 1 : top + 1 + step], rows[max(0, bottom - step) : bottom]
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
        path=Path("synthetic"),
        sha256="",
        ts=np.arange(len(rows)) * 60,
        open=close,
        high=high,
        low=low,
        close=close,
        volume=volume,
        vix=np.full(len(rows), np.nan),
        off_grid=np.zeros(len(rows), bool),
        contract=np.zeros(len(rows), dtype=np.int64),
        symbols=(),
        bar_seconds=60,
        rows_in_file=len(rows),
    )
    found = Sessions(
        date=np.arange(len(sessions)),
        number=np.arange(len(sessions)),
        close=np.full(len(sessions), 960),
        open_utc=(stop - sizes) * 60,
        close_utc=(stop - sizes + 390) * 60,
        first=stop - sizes,
        start=stop - sizes,
        stop=stop,
        end=stop,
        expected=np.full(len(sessions), 390),
        found=sizes,
        complete=np.ones(len(sessions), bool),
        contract=np.zeros(len(sessions), dtype=np.int64),
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


methods = st.sampled_from(["two_row", "one_row"])
STEP = {"two_row": 2, "one_row": 1}


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(many_sessions, st.integers(1, 6), methods)
def test_sessions_agree_with_the_oracle(sessions, chunk_size, method):
    bars, found = as_bars(sessions)
    levels = session_levels(bars, found, chunk_size, method=method)
    expected = [oracle_levels(*oracle_histogram(session), STEP[method]) for session in sessions]
    assert as_tuples(levels) == expected
    rth = rth_bars(bars, found, "uniform")
    profiles, histogram = session_profiles(rth, brackets(bars, found, rth), method)
    assert as_tuples(profiles.levels) == expected
    for rows, session in zip(histogram.tolist(), sessions, strict=True):
        volumes = oracle_histogram(session)[0]
        assert rows == volumes + [0] * (len(rows) - len(volumes))


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(many_sessions, methods)
def test_developing_profiles_agree_with_the_oracle(sessions, method):
    bars, found = as_bars(sessions)
    rth = rth_bars(bars, found, "uniform")
    profiles = developing_profiles(rth, brackets(bars, found, rth), method)
    expected = [
        oracle_levels(*oracle_histogram(session[: i + 1]), STEP[method])
        for session in sessions
        for i in range(len(session))
    ]
    assert as_tuples(profiles.levels) == expected
    so_far = [session[: i + 1] for session in sessions for i in range(len(session))]
    assert profiles.low.tolist() == [min(bar[0] for bar in part) for part in so_far]
    assert profiles.high.tolist() == [max(bar[1] for bar in part) for part in so_far]


@st.composite
def a_busy_bar(draw):
    """One of many that are alike, so that the VPOC moves often, over a range that is wider than the rivals are many."""
    low = PRICE + draw(st.sampled_from([0, 1, 2, 20, 40, 60]))
    high = low + draw(st.sampled_from([0, 0, 1, 5]))
    return low, high, draw(st.sampled_from([low, high])), draw(st.integers(0, 4))


def print_at(tick, volume):
    return PRICE + tick, PRICE + tick, PRICE + tick, volume


TIED_WITH_NO_RIVAL = [
    (PRICE, PRICE + 5, PRICE, 0),
    print_at(0, 5),
    print_at(5, 5),
    print_at(3, 5),
    (PRICE + 3, PRICE + 7, PRICE + 3, 0),
    print_at(5, 5),
    print_at(0, 2),
]
"""The VPOC comes from 3, which is no rival of 5 at the end, but was its equal before."""


def last_move_of(session):
    """The bar, from 0, at which the VPOC of the bars so far last changed."""
    vpoc = [oracle_levels(*oracle_histogram(session[: i + 1]))[0] for i in range(len(session))]
    return max((i for i in range(1, len(vpoc)) if vpoc[i] != vpoc[i - 1]), default=0)


@pytest.mark.slow
@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(st.lists(st.one_of(a_busy_bar(), a_bar()), min_size=1, max_size=25), min_size=1, max_size=4),
    st.sampled_from([1, 3, 32]),
)
@example([TIED_WITH_NO_RIVAL], 1)
def test_the_last_move_of_the_developing_vpoc_is_found(sessions, rivals):
    """However few ticks are taken for rivals of the VPOC."""
    bars, found = as_bars(sessions)
    rth = rth_bars(bars, found, "uniform")
    profiles, histogram = session_profiles(rth, brackets(bars, found, rth), "two_row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "RIVALS", rivals)
        moved = last_moves(rth, histogram, profiles.levels.vpoc - rth.base)
    assert moved.tolist() == [last_move_of(session) for session in sessions]


@settings(max_examples=3 * settings.default.max_examples)
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
    levels = session_levels(bars, found, 2)
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
    assert as_tuples(session_levels(bars, found, 1)) == [(PRICE + 2, PRICE + 2, PRICE + 2, 0, 0, 0)]


def test_a_wrong_print_is_refused_before_it_fills_the_memory():
    bars, found = as_bars([[(PRICE, PRICE, PRICE, 1), (PRICE * 10, PRICE * 10, PRICE * 10, 1)]])
    with pytest.raises(UserError, match="high more than half above its low"):
        session_levels(bars, found, 1)
