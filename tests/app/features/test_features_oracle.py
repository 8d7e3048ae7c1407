"""Tests of all features and targets against the oracle, on small synthetic markets and on a real file.

Integers are equal; other numbers agree to 1e-9 of their size, or to 1e-11, the last bit of a price in ticks.
"""

import datetime as dt
from dataclasses import replace
from itertools import product

import polars as pl
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from oracle import features as oracle
from oracle.app import built, frame_of, merged_2026, read_merged
from oracle.market import drop, market, regular, session_dates, synthetic, until_1615
from oracle.sessions import local, utc

from vpoc.errors import UserError

PLACEMENTS = ("uniform", "close", "typical")
METHODS = ("two_row", "one_row")
KINDS = (("bar", "close"), ("session", "close"), ("session", "open"))


def expected_rows(known, rows, as_of):
    return oracle.bar_rows(known) if rows == "bar" else oracle.session_rows(known, as_of)


def assert_same(frame, rows, kind):
    """Check that `frame` has exactly the rows of the oracle."""
    stamps = ["trade_date", "ts"] if kind == "bar" else ["trade_date"]
    assert frame.columns == [*stamps, *oracle.FEATURES, *oracle.TARGETS[kind]]
    found = frame.with_columns(pl.col("ts").dt.epoch("s")) if kind == "bar" else frame
    assert found.select(stamps).rows() == [tuple(row[name] for name in stamps) for row in rows]
    different = []
    for name in frame.columns[len(stamps) :]:
        for got, row in zip(found[name].to_list(), rows, strict=True):
            if not same(got, row[name]):
                place = " ".join(str(row[stamp]) for stamp in stamps)
                different.append(f"{name} of {place}: expected {row[name]!r}, got {got!r}")
    assert not different, "\n".join([f"{len(different)} different values", *different[:20]])


def same(got, expected):
    if expected is None or isinstance(expected, int):
        return got == expected
    return got == pytest.approx(float(expected), rel=1e-9, abs=1e-11)


def check(known, rows, as_of, **options):
    """Compare all rows with the oracle's and return how many there are."""
    expected = expected_rows(known, rows, as_of)
    if not expected:
        with pytest.raises(UserError):
            built(known, rows, as_of, **options)
        return 0
    assert_same(built(known, rows, as_of, **options), expected, rows)
    return len(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "method", "rows", "as_of"),
    [(*chosen, *kind) for chosen, kind in zip(product(PLACEMENTS, METHODS), 2 * KINDS, strict=True)],
)
def test_every_placement_and_method(placement, method, rows, as_of):
    bars = synthetic(11, 23, 10)
    assert check(market(bars, 10, placement=placement, value_area=method), rows, as_of) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_trades(method, rows, as_of):
    """The file has a row per trade: one or two a minute, without a price range, some of them twice the same."""
    bars = synthetic(19, 22, 1, night=0.02, volume=(1, 9))
    trades = [
        bar._replace(ts=bar.ts + second, open=price, high=price, low=price, close=price)
        for bar in bars
        for second, price in ((7, bar.open), (7, bar.open), (53, bar.close))[: 1 + bar.volume % 3]
    ]
    if rows == "bar":
        # The last session ends after its first minutes, because the oracle is slow.
        start = utc(session_dates(dt.date(2025, 10, 20), 22)[-1], 570)
        trades = [trade for trade in trades if trade.ts < start + 45 * 60]
        known = market(trades, 0, placement="ticks", value_area=method)
        today = {local(start).date()}
        frame = built(known, rows).filter(pl.col("trade_date").is_in(today))
        assert frame.height >= 60
        assert_same(frame, oracle.bar_rows(known, today), rows)
    else:
        assert check(market(trades, 0, placement="ticks", value_area=method), rows, as_of) >= 1


@pytest.mark.parametrize("rows", ["session", "bar"])
@pytest.mark.parametrize(
    "other",
    [
        {"low": 16_400, "high": 16_400, "volume": 10**6},  # one contract trades at 16,401
        {"low": 16_400, "high": 16_403, "volume": 997},
    ],
)
def test_a_narrow_profile_far_from_the_open(other, rows):
    """Moments are taken about the mean: about the open, 400 ticks away, rounding errors would dominate them."""
    first = dt.date(2025, 9, 8)
    bars = synthetic(20, 22, 30, first=first)
    for number, i in enumerate(regular(bars, session_dates(first, 22)[-1])):
        shape = {"low": 15_999, "high": 16_400, "volume": 0} if number == 0 else other
        if number == 9:
            shape = {"low": 16_401, "high": 16_401, "volume": 1}
        bars[i] = bars[i]._replace(open=shape["low"], close=shape["low"], **shape)
    assert check(market(bars, 30), rows, "close") >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "rows", "as_of"), [(5, "session", "open"), (15, "bar", "close"), (30, "session", "close")]
)
def test_other_bars(minutes, rows, as_of):
    assert check(market(synthetic(minutes, 22, minutes), minutes), rows, as_of) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_summer_time_ends_a_holiday_and_a_half_day(rows, as_of):
    bars = synthetic(5, 30, 10, first=dt.date(2025, 10, 23), night=0.6)
    known = market(bars, 10)
    dates = {row["trade_date"] for row in expected_rows(known, rows, as_of)}
    assert dt.date(2025, 11, 28) in dates
    assert dt.date(2025, 11, 27) not in dates
    check(known, rows, as_of)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_half_days_among_the_sessions_before(rows, as_of):
    """log_vol_rel is compared with the mean of full days only, so one session more is needed."""
    known = market(synthetic(6, 28, 30, first=dt.date(2025, 11, 14)), 30)
    dates = [row["trade_date"] for row in expected_rows(known, rows, as_of)]
    assert dates[0] == session_dates(dt.date(2025, 11, 14), 22)[-1]
    check(known, rows, as_of)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize("symbols", [True, False])
def test_a_roll(symbols, rows, as_of):
    """A roll is known only from a column of contracts. The five sessions after a known roll have no rows."""
    roll = dt.date(2025, 11, 18)
    first = dt.date(2025, 10, 15)
    bars = synthetic(7, 32, 30, first=first, rolls=[roll], symbols=symbols)
    known = market(bars, 30, rolls=[roll] if symbols else [])
    dates = session_dates(first, 32)
    found = {row["trade_date"] for row in expected_rows(known, rows, as_of)}
    assert (dates[dates.index(roll) + 4] in found) is not symbols
    assert dates[dates.index(roll) + 5] in found
    check(known, rows, as_of)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize(("minutes", "lost"), [(10, 1), pytest.param(10, 2, marks=pytest.mark.long), (30, 13)])
def test_missing_bars(minutes, lost, rows, as_of):
    """One bar of 39 may be missing; without two, or all 13, the session is dropped and five after it have no rows."""
    first = dt.date(2025, 9, 8)
    bars = synthetic(8, 31, minutes, first=first)
    dates = session_dates(first, 31)
    known = market(drop(bars, regular(bars, dates[23])[-lost:]), minutes)
    found = {row["trade_date"] for row in expected_rows(known, rows, as_of)}
    assert (dates[23] in found) is (lost == 1)
    assert (dates[28] in found) is (lost == 1)
    assert dates[29] in found
    check(known, rows, as_of)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize("left", [0, 1, 12, 38, 39])
def test_the_session_in_progress(left, rows, as_of):
    first = dt.date(2025, 9, 8)
    bars = synthetic(9, 23, 10, first=first)
    positions = regular(bars, session_dates(first, 23)[-1])
    bars = bars[: positions[0] + left]
    assert check(market(bars, 10), rows, as_of) >= 1


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_without_a_first_vix(rows, as_of):
    """The first session has no VIX close, so the row that looks 20 closes back is left out."""
    first = dt.date(2025, 9, 8)
    bars = synthetic(10, 24, 30, first=first)
    end = regular(bars, session_dates(first, 1)[0])[-1]
    bars = [bar._replace(vix=None) if i <= end + 2 else bar for i, bar in enumerate(bars)]
    assert bars[end + 3].ts > utc(first, 17 * 60)
    assert check(market(bars, 30), rows, as_of) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vix", "rows", "as_of"), [(17.3, "bar", "close"), (0.1, "session", "close"), (23.45, "session", "open")]
)
def test_a_vix_that_never_moves_has_no_deviation(vix, rows, as_of):
    """In floating point, 20 times 17.30 added up and divided by 20 is not 17.30."""
    bars = [bar._replace(vix=vix) for bar in synthetic(12, 23, 30)]
    last = dt.date(2025, 11, 19)
    bars = [bar._replace(vix=vix + 1) if bar.ts >= utc(last, 0) else bar for bar in bars]
    known = market(bars, 30)
    assert {row["vix_z20"] for row in expected_rows(known, rows, as_of)} >= {0}
    check(known, rows, as_of)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_sessions_without_volume_and_of_one_tick(rows, as_of):
    first = dt.date(2025, 9, 8)
    bars = synthetic(13, 27, 30, first=first)
    dates = session_dates(first, 27)
    empty, flat = set(regular(bars, dates[21])), set(regular(bars, dates[22]))
    night = {i for i, bar in enumerate(bars) if utc(dates[23], -6 * 60) <= bar.ts < utc(dates[23], 570)}
    price = bars[min(flat)].open
    bars = [
        bar._replace(volume=0)
        if i in empty
        else bar._replace(open=price, high=price, low=price, close=price)
        if i in flat
        else bar
        for i, bar in enumerate(bars)
        if i not in night
    ]
    known = market(bars, 30)
    found = {row["trade_date"]: row for row in expected_rows(known, rows, as_of)}
    assert found[dates[21]]["va_share"] == found[dates[22]]["prof_std"] == 0
    assert found[dates[22]]["close_pos"] == 0.5
    check(known, rows, as_of)


@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_enormous_volumes(rows, as_of):
    bars = synthetic(14, 23, 30, volume=(10**11, 10**12))
    assert check(market(bars, 30), rows, as_of) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
def test_regular_hours_until_1615(rows, as_of):
    bars = synthetic(15, 30, 15, first=dt.date(2025, 10, 23), night=0.9)
    known = replace(market(bars, 15), calendar=until_1615)
    check(known, rows, as_of, rth_close="16:15")


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize(("lookback", "days"), [(5, 26), (24, 26), (60, 64), (62, 66)])
def test_other_lookbacks(lookback, days, rows, as_of):
    """The lookback also limits how far back naked levels are searched, to 60 sessions at most."""
    bars = synthetic(15, days, 30, first=dt.date(2025, 9, 2), pace=6)
    assert check(market(bars, 30, lookback=lookback), rows, as_of, chunk_size=7) >= 1


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([10, 15, 30]),
    st.integers(22, 30),
    st.sampled_from([dt.date(2025, 9, 2), dt.date(2025, 10, 23), dt.date(2025, 11, 3)]),
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 10_000),
            "volume": st.sampled_from([(0, 3), (0, 30), (0, 5_000)]),
            "pace": st.sampled_from([1, 4]),
            "night": st.sampled_from([0.0, 0.2, 0.9]),
            "without_vix": st.sampled_from([0, 0, 5, 40]),
        }
    ),
    st.fixed_dictionaries(
        {
            "placement": st.sampled_from(PLACEMENTS),
            "value_area": st.sampled_from(METHODS),
            "lookback": st.sampled_from([20, 20, 21]),
        }
    ),
    st.none() | st.integers(0, 29),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 38), st.sampled_from([1, 1, 2, 39])), max_size=2),
    st.sampled_from([0, 0, 3, 10, 50]),
)
def test_any_market(kind, minutes, days, first, shape, options, roll, gaps, cut):
    """A market may have a roll, sessions with missing bars and an unfinished last session at once."""
    dates = session_dates(first, days)
    rolls = [] if roll is None else [dates[roll % days]]
    bars = synthetic(days=days, minutes=minutes, first=first, rolls=rolls, symbols=bool(rolls), **shape)
    for session, start, count in gaps:
        positions = regular(bars, dates[session % days])
        bars = drop(bars, positions[start : start + count])
    known = market(bars[: len(bars) - cut], minutes, rolls, **options)
    event(f"some rows: {check(known, *kind) > 0}")


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize(("rows", "as_of"), KINDS)
@pytest.mark.parametrize("rolls", [pytest.param("none", marks=pytest.mark.long), "calendar"])
def test_the_real_file(rolls, rows, as_of, real_data, tmp_path_factory):
    """The file has five-minute bars of 2026 with Good Friday, daylight saving from 8 March and a roll on 16 March."""
    path = merged_2026(real_data, tmp_path_factory)
    days = [dt.date(2026, 3, 16)] if rolls == "calendar" else []
    known = market(read_merged(path), 5, days)
    frame = frame_of(path, rows, as_of, rolls=rolls, lookback=20)
    if rows == "session":
        assert_same(frame, oracle.session_rows(known, as_of), rows)
        return
    some = {dt.date(2026, 3, 23), dt.date(2026, 4, 6)}
    assert_same(frame.filter(pl.col("trade_date").is_in(some)), oracle.bar_rows(known, some), rows)
