import dataclasses
import math

import numpy as np
import polars as pl
import pytest

from vpoc.data.bars import load_bars
from vpoc.data.sessions import split_sessions
from vpoc.errors import UserError
from vpoc.features.build import build_features
from vpoc.features.table import FEATURES, NAMES, Snapshot
from vpoc.features.targets import TARGETS, next_touched, next_up, touched_later, up_30
from vpoc.profile.levels import Levels

WARM_UP = 20


@pytest.fixture(scope="module")
def bars(merged):
    return load_bars(merged)


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_columns(bars, rows):
    frame = build_features(bars, rows, warm_up=WARM_UP).frame
    stamps = ["trade_date", "ts"] if rows == "bar" else ["trade_date"]
    assert frame.columns == [*stamps, "vpoc", "vah", "val", *NAMES, "atr20", *TARGETS[rows]]
    assert frame.height == (6 * 39 if rows == "bar" else 6)
    assert frame.select(NAMES).null_count().sum_horizontal()[0] == 0


def test_the_first_twelve_features_in_order():
    assert NAMES == (
        "vpoc_dist",
        "vah_dist",
        "val_dist",
        "va_width",
        "va_width_frac",
        "vpoc_pos",
        "close_pos",
        "close_vs_va",
        "vpoc_share",
        "va_share",
        "vpoc_chg1",
        "vpoc_chg5",
    )


def one(name, **values):
    numbers = {"high": 120, "low": 100, "close": 115, "vpoc_1": 90, "vpoc_5": 130} | values
    levels = {"vpoc": 110, "vah": 114, "val": 104, "vpoc_volume": 30, "area_volume": 70, "volume": 100}
    levels = {key: np.array([numbers.pop(key, value)]) for key, value in levels.items()}
    snapshot = Snapshot(levels=Levels(**levels), **{key: np.array([value]) for key, value in numbers.items()})
    return next(feature for feature in FEATURES if feature.name == name).compute(snapshot).tolist()[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vpoc_dist", 5),
        ("vah_dist", -1),
        ("val_dist", 11),
        ("va_width", 10),
        ("va_width_frac", 0.5),
        ("vpoc_pos", 0.5),
        ("close_pos", 0.75),
        ("close_vs_va", 1),
        ("vpoc_share", 0.3),
        ("va_share", 0.7),
        ("vpoc_chg1", 20),
        ("vpoc_chg5", -20),
    ],
)
def test_each_formula(name, value):
    assert one(name) == value


def test_codes_and_zero_denominators():
    assert one("close_vs_va", close=103) == -1
    assert [one("close_vs_va", close=c) for c in (104, 109, 114)] == [0, 0, 0]
    flat = {"high": 100, "low": 100, "close": 100, "vpoc": 100, "vah": 100, "val": 100, "volume": 0}
    assert [one(name, **flat) for name in ("vpoc_pos", "close_pos")] == [0.5, 0.5]
    assert [one(name, **flat) for name in ("va_width_frac", "vpoc_share", "va_share")] == [0, 0, 0]


def test_the_last_bar_of_a_session_has_the_levels_of_the_session(bars):
    by_bar = build_features(bars, "bar", warm_up=WARM_UP).frame.group_by("trade_date", maintain_order=True).last()
    by_session = build_features(bars, "session", warm_up=WARM_UP).frame
    columns = ["trade_date", "vpoc", "vah", "val", *NAMES]
    assert by_bar.select(columns).equals(by_session.select(columns))


def test_atr20_covers_this_session_only_in_session_rows(bars):
    sessions = split_sessions(bars)
    ranges = [
        int(bars.high[a:b].max() - bars.low[a:b].min()) for a, b in zip(sessions.start, sessions.stop, strict=True)
    ]
    by_session = build_features(bars, "session", warm_up=WARM_UP).frame["atr20"].to_list()
    by_bar = build_features(bars, "bar", warm_up=WARM_UP).frame["atr20"].to_list()
    assert by_session == [sum(ranges[t - 19 : t + 1]) / 20 for t in range(20, 26)]
    assert by_bar[::39] == [sum(ranges[t - 20 : t]) / 20 for t in range(20, 26)]


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_any_chunk_size_gives_the_same_answer(bars, rows):
    frames = [build_features(bars, rows, warm_up=WARM_UP, chunk_size=n).frame for n in (1, 4, 100)]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])


def test_the_fraction_keeps_the_most_recent_sessions(bars):
    whole = build_features(bars, "bar", warm_up=WARM_UP)
    half = build_features(bars, "bar", warm_up=WARM_UP, data_fraction=0.5)
    assert half.sessions_used == 3
    assert half.frame.equals(whole.frame.tail(3 * 39))


def test_incomplete_sessions_are_left_out_and_counted(bars):
    sessions = split_sessions(bars)
    rows = np.ones(len(bars), bool)
    rows[sessions.start[10] : sessions.start[10] + 5] = False
    built = build_features(bars.take(rows), "session", warm_up=WARM_UP)
    assert (built.sessions_total, built.sessions_dropped, built.sessions_used) == (26, 1, 5)


def without(bars, session):
    """The bars without most of the regular hours of `session`."""
    sessions = split_sessions(bars)
    rows = np.ones(len(bars), bool)
    rows[sessions.start[session] + 5 : sessions.stop[session]] = False
    return bars.take(rows)


def test_what_comes_after_a_gap_is_not_next(bars):
    whole = build_features(bars, "session", warm_up=WARM_UP).frame
    frame = build_features(without(bars, 24), "session", warm_up=WARM_UP, fewest=1).frame
    assert frame["trade_date"].to_list() == whole["trade_date"].to_list()[:4]
    for target in TARGETS["session"]:
        assert whole[target].null_count() == 1
        assert frame[target].to_list() == [*whole[target].to_list()[:3], None]


@pytest.mark.parametrize("rows", ["bar", "session"])
def test_a_row_with_a_missing_session_among_the_five_before_it_is_left_out_and_counted(bars, rows):
    built = build_features(without(bars, 17), rows, warm_up=WARM_UP, fewest=1)
    dates = split_sessions(bars).date
    # Session 18 is the first after the gap, 23 the first with five before it; the warm-up ends with session 20.
    found = built.frame["trade_date"].unique().sort().to_physical().to_list()
    assert found == dates[23:].tolist()
    assert (built.sessions_dropped, built.sessions_apart, built.sessions_used) == (1, 2, 3)
    whole = build_features(bars, rows, warm_up=WARM_UP).frame
    same = ["vpoc", "vpoc_chg1", "vpoc_chg5", *TARGETS[rows]]
    assert built.frame.select(same).equals(whole.tail(built.frame.height).select(same))


def test_gaps_that_leave_too_little_are_said(bars):
    with pytest.raises(UserError, match=r"of the 5 complete sessions after the warm-up, 1 follow 5 others"):
        build_features(without(bars, 19), "bar", warm_up=WARM_UP)


def test_too_few_sessions_say_how_many_are_needed(bars):
    with pytest.raises(UserError, match=r"63 complete sessions are needed .* has 26; .*--warm-up"):
        build_features(bars, "bar", warm_up=60)
    with pytest.raises(UserError, match=r"0.2 of 6 sessions leaves 1; give at least 0.5"):
        build_features(bars, "bar", warm_up=WARM_UP, data_fraction=0.2)


def test_an_open_session_has_bar_rows_but_no_session_row(bars):
    sessions = split_sessions(bars)
    unfinished = bars.take(np.arange(len(bars)) < sessions.stop[-1] - 20)
    by_bar = build_features(unfinished, "bar", warm_up=WARM_UP).frame
    assert by_bar.height == 5 * 39 + 19
    touched = by_bar.tail(19)["prior_vpoc_touched"].to_list()
    assert 0.0 not in touched, "an open session cannot say that a level was not touched"
    by_session = build_features(unfinished, "session", warm_up=WARM_UP).frame
    assert by_session.height == 5


def test_session_rows_need_one_session_more(bars):
    """The last one has no label."""
    sessions = split_sessions(bars)
    fewer = bars.take(np.arange(len(bars)) < sessions.stop[22])
    assert build_features(fewer, "bar", warm_up=WARM_UP).sessions_used == 3
    with pytest.raises(
        UserError, match=r"24 complete sessions are needed \(20 to warm up, 4 to use\), the file has 23"
    ):
        build_features(fewer, "session", warm_up=WARM_UP)


def test_up_30():
    close = np.arange(100, 140)
    close[35] = 0
    target = up_30(close)
    assert target[:10].tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert np.isnan(target[10:]).all()
    assert np.isnan(up_30(np.arange(30))).all()
    assert up_30(np.full(31, 5))[0] == 0, "unchanged is not up"


def test_touched_later():
    low, high = np.array([10, 11, 12, 13]), np.array([11, 12, 13, 14])
    assert [None if math.isnan(x) else x for x in touched_later(low, high, 13, session_over=True)] == [1, 1, None, None]
    assert np.isnan(touched_later(low, high, 10, session_over=True)).all()
    assert touched_later(low, high, 20, session_over=True).tolist() == [0, 0, 0, 0]
    assert np.isnan(touched_later(low, high, 20, session_over=False)).all()


def test_targets_of_the_next_session():
    open_, close = np.array([10, 10, 10]), np.array([10, 11, 10])
    assert next_up(open_, close)[:2].tolist() == [1, 0]
    assert np.isnan(next_up(open_, close)[2])
    vpoc, low, high = np.array([10, 20, 30]), np.array([5, 11, 15]), np.array([12, 25, 40])
    assert next_touched(vpoc, low, high)[:2].tolist() == [0, 1]


def test_null_targets_are_null_in_the_frame(bars):
    frame = build_features(bars, "session", warm_up=WARM_UP).frame
    assert frame["next_up"].null_count() == 1
    assert not frame["next_up"].is_nan().any()
    assert frame["next_up"].dtype == pl.Float64


def test_a_late_bar_changes_no_earlier_session(bars):
    changed = dataclasses.replace(bars, volume=bars.volume.copy())
    changed.volume[split_sessions(bars).stop[-1] - 1] *= 50
    before = build_features(bars, "bar", warm_up=WARM_UP).frame
    after = build_features(changed, "bar", warm_up=WARM_UP).frame
    assert before.head(-1).equals(after.head(-1))
    assert not before.equals(after)
