"""Tests of the oracle itself against cases worked out by hand."""

import datetime as dt
from fractions import Fraction

import pytest
from oracle import features, sessions
from oracle import profile as vp
from oracle.market import calendar, market, synthetic
from oracle.profile import Bar

from vpoc.features.table import NAMES


def bar(low, high, close, volume, open_=None, ts=0):
    return Bar(ts, close if open_ is None else open_, high, low, close, volume)


@pytest.mark.parametrize(
    ("close", "expected"),
    [
        (10, {10: 3, 11: 3, 12: 2, 13: 2}),  # the run of remaining contracts cannot begin below the low
        (11, {10: 3, 11: 3, 12: 2, 13: 2}),
        (12, {10: 2, 11: 3, 12: 3, 13: 2}),
        (13, {10: 2, 11: 2, 12: 3, 13: 3}),
    ],
)
def test_uniform_placement(close, expected):
    assert vp.placed(bar(10, 13, close, 10), "uniform") == expected


def test_uniform_placement_without_a_rest():
    assert vp.placed(bar(10, 13, 13, 8), "uniform") == dict.fromkeys(range(10, 14), 2)
    assert vp.placed(bar(10, 10, 10, 7), "uniform") == {10: 7}
    assert vp.placed(bar(10, 13, 13, 0), "uniform") == dict.fromkeys(range(10, 14), 0)


@pytest.mark.parametrize(("close", "tick"), [(10, 11), (11, 11), (12, 12), (13, 12)])
def test_typical_placement_rounds_to_the_nearest_tick(close, tick):
    """(13 + 10 + close) / 3 is 11, 11 1/3, 11 2/3 and 12."""
    assert vp.placed(bar(10, 13, close, 5), "typical") == {tick: 5}


def test_rows_of_several_ticks_lie_at_multiples_of_their_size():
    rows = vp.profile([bar(10, 13, 12, 10)], "uniform", 4)
    assert rows == {2: 5, 3: 5}  # ticks 8..11 and 12..15


def test_the_range_includes_bars_without_volume():
    assert vp.profile([bar(10, 10, 10, 4), bar(12, 13, 12, 0)]) == {10: 4, 11: 0, 12: 0, 13: 0}


def test_vpoc_ties():
    assert vp.vpoc({10: 5, 11: 0, 12: 0, 13: 5, 14: 1}) == 13
    assert vp.vpoc({10: 5, 11: 0, 12: 0, 13: 5}) == 10
    assert vp.vpoc({10: 0, 11: 0, 12: 0}) == 11
    assert vp.vpoc({10: 0, 11: 0, 12: 0, 13: 0}) == 11


def test_value_area():
    rows = {1: 10, 2: 20, 3: 40, 4: 15, 5: 15}
    assert vp.value_area(rows) == (5, 3, 70)  # 30 above and 30 below: a tie goes up, and 70 of 100 are enough
    assert vp.value_area(rows, "one_row") == (4, 2, 75)
    assert vp.value_area({1: 10, 2: 5, 3: 0, 4: 0, 5: 6}) == (3, 1, 15)
    assert vp.value_area({1: 10, 2: 5, 3: 0, 4: 0, 5: 7}) == (5, 1, 22)
    assert vp.value_area({7: 0}) == (7, 7, 0)


def test_developing_vpoc_and_the_age_of_its_last_move():
    bars = [bar(10, 10, 10, 1), bar(12, 12, 12, 2), bar(10, 10, 10, 1), bar(11, 11, 11, 1), bar(10, 10, 10, 1)]
    assert vp.developing_vpocs(bars) == [10, 12, 10, 10, 10]  # a tie of 2 at equal distance: the lower
    assert features.last_move([10, 12, 10, 10, 10]) == 2
    assert features.last_move([10]) == 0


def test_tpo_single_prints_and_tails():
    bars = [bar(10, 12, 10, 1), bar(14, 16, 14, 1), bar(11, 11, 11, 1), bar(15, 17, 15, 1), bar(13, 13, 13, 1)]
    rows = vp.tpo(bars, [0, 0, 1, 1, 2])
    assert rows == {10: 1, 11: 2, 12: 1, 13: 1, 14: 1, 15: 2, 16: 2, 17: 1}
    assert vp.single_prints(rows) == [12, 13, 14]
    assert (vp.upper_tail(rows), vp.lower_tail(rows)) == (1, 1)
    assert not vp.poor_high(rows)
    assert not vp.poor_low(rows)
    assert vp.tpo(bars[:2], [0, 0])[13] == 0, "a bracket is the union of its bars, not their hull"
    assert vp.tpo(bars[:1] * 3, [0, 0, 0]) == {10: 1, 11: 1, 12: 1}
    one_bracket = vp.tpo(bars[:1], [0])
    assert vp.single_prints(one_bracket) == []
    assert (vp.upper_tail(one_bracket), vp.lower_tail(one_bracket)) == (3, 3)
    twice = vp.tpo([*bars[:1], bar(12, 12, 12, 1)], [0, 1])
    assert vp.poor_high(twice)
    assert not vp.poor_low(twice)
    assert vp.tpo(bars[:2], [0, 1], 4) == {2: 1, 3: 2, 4: 1}


def test_smoothing_is_triangular_over_nine_ticks():
    assert list(vp.smoothed({k: 7 * (k == 5) for k in range(11)}).values()) == [0, 7, 14, 21, 28, 35, 28, 21, 14, 7, 0]
    assert vp.smoothed({0: 1, 1: 1}) == {0: 9, 1: 9}


def test_nodes():
    assert vp.nodes(dict.fromkeys(range(4), 0)) == ([], [])
    assert vp.nodes({3: 1}) == ([3], [])
    # Peaks of 50 and 25 at a distance of 20; the second is exactly half, and a floor of zero lies between them.
    rows = {k: 10 * (k == 10) + 5 * (k == 30) for k in range(41)}
    assert vp.nodes(rows) == ([10, 30], [20])
    rows[30] = 4
    assert vp.nodes(rows) == ([10], []), "below half of the peak there is no second node, and nothing lies between"
    # Rows 10 and 11 are 45 after smoothing: the lower middle is taken. Rows 0 .. 5 have only one higher neighbour.
    assert vp.nodes({k: 5 * (k in (10, 11)) for k in range(20)}) == ([10], [])


def test_thirds_moments_and_entropy():
    rows = {10: 1, 11: 2, 12: 3, 13: 4, 14: 5, 15: 6}
    assert vp.thirds(rows) == (3, 11)
    assert vp.thirds({10: 1, 11: 2, 12: 3, 13: 4}) == (1, 4)  # with 4 rows, the thirds end after 1 1/3 and 2 2/3
    assert vp.thirds({10: 9}) == (0, 0)
    assert vp.mean({10: 1, 12: 3}) == Fraction(23, 2)
    assert [vp.central_moment({10: 1, 12: 3}, power) for power in (2, 3)] == [Fraction(3, 4), Fraction(-3, 4)]
    assert vp.entropy({1: 5, 2: 5}) == 1
    assert vp.entropy({1: 5, 2: 0, 3: 0, 4: 5}) == pytest.approx(0.5)
    assert vp.entropy({1: 5}) == 0


def test_composites_have_every_row_between_the_sessions():
    assert vp.composite([{10: 1, 11: 1}, {13: 5}]) == {10: 1, 11: 1, 12: 0, 13: 5}


def utc_text(text):
    return int(dt.datetime.fromisoformat(text + "+00:00").timestamp())


@pytest.mark.parametrize(
    ("stamp", "date"),
    [
        ("2025-10-31T20:59:00", "2025-10-31"),
        ("2025-11-02T23:00:00", "2025-11-03"),  # Sunday 18:00, in winter time since that morning
        ("2025-10-26T22:00:00", "2025-10-27"),  # Sunday 18:00, in summer time
        ("2025-11-26T23:00:00", "2025-11-28"),  # the evening before Thanksgiving
        ("2025-11-27T17:00:00", "2025-11-28"),
        ("2025-11-30T23:00:00", "2025-12-01"),
    ],
)
def test_session_dates(stamp, date):
    assert str(sessions.session_date(utc_text(stamp), calendar)) == date


def test_sessions_of_a_half_day_after_a_holiday():
    bars = synthetic(1, 5, 30, first=dt.date(2025, 11, 24), night=1)
    found = sessions.split(bars, calendar, 1800)
    assert [str(one.date) for one in found] == [f"2025-11-{day}" for day in (24, 25, 26, 28)] + ["2025-12-01"]
    friday = found[3]
    assert [len(part) for part in (friday.overnight, friday.rth, friday.post)] == [38 + 31, 7, 1]
    assert [len(part) for part in (found[0].overnight, found[0].rth, found[0].post)] == [31, 13, 2]
    assert all(one.complete for one in found)
    cut = sessions.split(bars[:-3], calendar, 1800)[-1]
    assert (cut.over, cut.complete, len(cut.rth)) == (False, False, 12)


def test_naked_levels_are_those_not_traded_through_since():
    assert vp.is_naked(10, [(5, 9), (11, 20)])
    assert not vp.is_naked(9, [(5, 9)])
    assert features.of_naked([(90, 3), (110, 2), (130, 1)], 100, Fraction(5)) == {
        "naked_n": 3,
        "naked_up": 10,
        "naked_dn": 10,
        "naked_age": 2,
        "naked_imb": Fraction(1, 3),
    }
    assert features.of_naked([(150, 3)], 100, Fraction(5)) == {
        "naked_n": 1,
        "naked_up": 20,
        "naked_dn": 20,
        "naked_age": 3,
        "naked_imb": 1,
    }


def test_every_feature_and_target_is_there():
    bars = synthetic(3, 22, 30)
    assert len(features.FEATURES) == len(set(features.FEATURES)) == len(NAMES)
    for rows, kind, stamps in (
        (features.session_rows(market(bars, 30)), "session", {"trade_date"}),
        (features.session_rows(market(bars, 30), "open"), "session", {"trade_date"}),
        (features.bar_rows(market(bars, 30)), "bar", {"trade_date", "ts"}),
    ):
        assert set(rows[0]) == stamps | set(features.FEATURES) | set(features.TARGETS[kind])
