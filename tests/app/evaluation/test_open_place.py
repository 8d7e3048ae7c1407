from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from vpoc.data.load import load_bars
from vpoc.evaluation.open_place import PLACES, open_places
from vpoc.evaluation.rows import rows_of
from vpoc.features.build import build_features
from vpoc.features.feature_options import FeatureOptions
from vpoc.features.table import NAMES
from vpoc.profile.profile import levels_of, profile_of

NEW_YORK = "America/New_York"


def days_of(path):
    """Return each full session's open, low, high, close and value area of regular hours, in ticks, by date."""
    local = pl.col("ts").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC").dt.convert_time_zone(NEW_YORK)
    minute = local.dt.hour().cast(pl.Int32) * 60 + local.dt.minute()
    frame = pl.read_csv(path).with_columns(date=local.dt.date(), minute=minute)
    frame = frame.filter(pl.col("minute").is_between(570, 960, "left"))
    found = {}
    for (date,), part in frame.group_by("date", maintain_order=True):
        ticks = {name: (part[name].to_numpy() * 4).astype(np.int64) for name in ("open", "high", "low", "close")}
        levels = levels_of(profile_of(ticks["low"], ticks["high"], ticks["close"], part["volume"].to_numpy()))
        found[date] = {
            "open": ticks["open"][0],
            "low": ticks["low"].min(),
            "high": ticks["high"].max(),
            "close": ticks["close"][-1],
            "val": levels.val[0],
            "vah": levels.vah[0],
        }
    return found


def place(price, day):
    if day["val"] <= price <= day["vah"]:
        return "inside value area"
    if price > day["high"]:
        return "above range"
    return "below range" if price < day["low"] else "inside range"


def found_of(features):
    dates = features.frame["trade_date"].to_list()
    return [(date, PLACES[index]) for date, index in zip(dates, open_places(features), strict=True)]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Return 52 sessions of half-hour bars with jumps between sessions, so that every place of the open occurs."""
    random = np.random.default_rng(3)
    dates = [np.datetime64("2019-01-22") + np.timedelta64(i, "D") for i in range(90)]
    dates = np.array([d for d in dates if np.is_busday(d) and str(d) not in ("2019-02-18", "2019-04-19")])[:52]
    lines, price = ["ts,open,high,low,close,volume,vix\n"], 10_000
    for date in dates:
        price += int(random.integers(-45, 46))
        for number in range(13):
            step = int(random.integers(-12, 13))
            ends = price / 4, (price + step) / 4
            stamp = pl.Series([f"{date}T{9 + (30 + 30 * number) // 60:02}:{(30 + 30 * number) % 60:02}"])
            utc = stamp.str.to_datetime("%Y-%m-%dT%H:%M", time_zone=NEW_YORK).dt.convert_time_zone("UTC")[0]
            cells = f"{ends[0]:.2f},{max(ends):.2f},{min(ends):.2f},{ends[1]:.2f},{random.integers(50, 900)},15.00"
            lines.append(f"{utc:%Y-%m-%dT%H:%M:%SZ},{cells}\n")
            price += step
    path = tmp_path_factory.mktemp("many") / "many.csv"
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize("data", ["many", "summer"])
def test_session_rows_as_of_the_open_have_the_next_open_against_their_session(request, data):
    path = request.getfixturevalue(data)
    days = days_of(path)
    following = dict(zip(list(days)[:-1], list(days)[1:], strict=True))
    features = build_features(load_bars(path), FeatureOptions(rows="session", as_of="open", lookback=20), fewest=1)
    found = found_of(features)
    assert [place for _, place in found] == [place(days[following[date]]["open"], days[date]) for date, _ in found]
    if data == "many":
        assert {place for _, place in found} == set(PLACES[:4])


def test_session_rows_as_of_the_close_have_the_close_against_their_session(many):
    days = days_of(many)
    found = found_of(build_features(load_bars(many), FeatureOptions(rows="session", lookback=20)))
    assert [place for _, place in found] == [place(days[date]["close"], days[date]) for date, _ in found]


def test_bar_rows_have_the_open_against_the_session_before(many):
    days = days_of(many)
    before = dict(zip(list(days)[1:], list(days)[:-1], strict=True))
    features = build_features(load_bars(many), FeatureOptions(rows="bar", lookback=20))
    first = features.frame["trade_date"][0]
    found = found_of(features)
    wanted = [place(days[date]["open"], days[before[date]]) for date, _ in found]
    assert [place for date, place in found if date > first] == wanted[13:]
    assert {place for date, place in found if date == first} == {
        wanted[0] if wanted[0] == "inside value area" else "range not known"
    }
    assert set(wanted) == set(PLACES[:4])


def test_the_range_before_a_gap_is_not_taken_for_that_of_the_session_before(many):
    features = build_features(load_bars(many), FeatureOptions(rows="bar", lookback=20))
    whole = dict(found_of(features))
    dates = list(whole)
    for missing, following in pairwise(dates[3:]):
        holed = replace(features, frame=features.frame.filter(pl.col("trade_date") != missing))
        found = dict(found_of(holed))
        expected = whole[following] if whole[following] == "inside value area" else "range not known"
        assert found[following] == expected
        assert {d: p for d, p in found.items() if d != following} == {
            d: p for d, p in whole.items() if d not in (missing, following)
        }


def test_rows_without_a_label_are_left_out_and_sessions_are_numbered(many):
    features = build_features(load_bars(many), FeatureOptions(rows="bar", lookback=20))
    rows, _ = rows_of(features, "prior_vpoc_touched")
    known = features.frame.filter(pl.col("prior_vpoc_touched").is_not_null())
    assert len(rows) == known.height < features.frame.height
    assert rows.labels.tolist() == known["prior_vpoc_touched"].to_list()
    dates = known["trade_date"].to_physical().to_numpy()
    assert (rows.dates[rows.sessions] == dates).all()
    assert (np.diff(rows.dates) > 0).all()
    assert rows.reach == 0
    places = dict(found_of(features))
    assert [PLACES[p] for p in rows.places] == [places[date] for date in known["trade_date"]]
    total = np.bincount(rows.sessions, rows.weights)
    assert total == pytest.approx(np.ones(len(total)), abs=1e-5)
    assert rows.inputs.dtype == np.float32


def test_session_labels_reach_one_session_further(many):
    features = build_features(load_bars(many), FeatureOptions(rows="session", lookback=20))
    rows, _ = rows_of(features, "next_up")
    assert rows.reach == 1
    assert (rows.weights == 1).all()
    part = rows.head(5)
    assert (len(part), len(part.dates), part.inputs.shape) == (5, 5, (5, len(NAMES)))
    assert rows.span(2, 4) == slice(2, 4)
