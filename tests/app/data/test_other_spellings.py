"""Tests of bars with VIX, of time stamps and of numbers in the spellings that other programs write."""

import io

import numpy as np
import polars as pl
import pytest

from vpoc.cli import run
from vpoc.data.checks.quality import inspect
from vpoc.data.load import load_bars, stream_bars
from vpoc.data.merge import merge
from vpoc.data.readers import read_vendor
from vpoc.data.readers.vix import read_vix
from vpoc.data.synth import synthetic_csv
from vpoc.errors import UserError

ZONE = "America/New_York"
ARRAYS = ("ts", "open", "high", "low", "close", "volume", "vix")


@pytest.fixture(scope="module")
def minutes(tmp_path_factory):
    path = tmp_path_factory.mktemp("spellings") / "m.csv"
    path.write_bytes(synthetic_csv(26, 7))
    return path


def frame_of(minutes, form="%Y-%m-%d %H:%M:%S", zone=ZONE, shift="0m"):
    frame = pl.read_csv(minutes, infer_schema=False)
    stamps = frame["ts"].str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.offset_by(shift)
    local = stamps.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return frame.with_columns(local.dt.to_string(form).alias("ts"))


def notes(frame):
    """Return the frame as a CSV with the column names of the user's notes."""
    return frame.rename({"ts": "timestamp"}).write_csv()


def semicolons(frame):
    commas = frame.with_columns(pl.col("open", "high", "low", "close", "vix").str.replace(".", ",", literal=True))
    return commas.write_csv(separator=";")


SPELLINGS = {
    "the notes": lambda minutes: notes(frame_of(minutes)),
    "in UTC": lambda minutes: notes(frame_of(minutes, zone="UTC")),
    "another order": lambda minutes: frame_of(minutes).select(sorted(ARRAYS)).write_csv(),
    "capitals": lambda minutes: (
        frame_of(minutes).rename(str.upper).rename({"TS": "Time", "VIX": "VIX_Close"}).write_csv()
    ),
    "prefixes": lambda minutes: (
        frame_of(minutes)
        .rename({name: f"es_{name}" for name in ("open", "high", "low", "close", "volume")})
        .rename({"ts": "datetime"})
        .write_csv()
    ),
    "AM and PM": lambda minutes: notes(frame_of(minutes, "%m/%d/%Y %I:%M:%S %p")),
    "day first": lambda minutes: notes(frame_of(minutes, "%d/%m/%Y %H:%M")),
    "day first with points": lambda minutes: notes(frame_of(minutes, "%d.%m.%Y %H:%M:%S")),
    "names of months": lambda minutes: notes(frame_of(minutes, "%d-%b-%Y %H:%M")),
    "fractions after a comma": lambda minutes: frame_of(minutes, "%Y-%m-%d %H:%M:%S,000").write_csv(),
    "decimal commas": lambda minutes: semicolons(frame_of(minutes)),
    "ends of bars": lambda minutes: notes(frame_of(minutes, shift="10m")),
    "latest first": lambda minutes: notes(frame_of(minutes).reverse()),
}


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_with_vix_is_taken_as_it_is(merged, tmp_path, spelling):
    path = tmp_path / "merged_es_vix_test.csv"
    path.write_text(SPELLINGS[spelling](merged))
    wanted, found = load_bars(merged), load_bars(path)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    assert found.bar_seconds == 600
    output = tmp_path / "merged.csv"
    output.write_bytes(merge(path, None).csv)
    np.testing.assert_array_equal(load_bars(output).vix, wanted.vix)
    quality = inspect(path)
    assert quality.errors == []
    assert quality.facts["null_vix"] == int(np.isnan(wanted.vix).sum())


@pytest.mark.slow
def test_the_commands_take_it(merged, tmp_path, capsys):
    path = tmp_path / "merged_es_vix_test.csv"
    path.write_text(notes(frame_of(merged)))
    output = tmp_path / "f.parquet"
    assert run(["check", str(path), "--lookback", "20", "--merged"]) == 0
    features = ["--lookback", "20", "--rows", "session", "--output"]
    assert run(["features", "--data", str(path), *features, str(output)]) == 0
    assert run(["features", "--data", str(merged), *features, str(tmp_path / "g.parquet")]) == 0
    assert pl.read_parquet(output).equals(pl.read_parquet(tmp_path / "g.parquet"))
    assert run(["merge", "--bars", str(path), "--output", str(tmp_path / "merged.csv")]) == 0
    assert "VIX of the same file" in capsys.readouterr().out
    assert sum(len(bars) for bars in stream_bars(path)) == len(load_bars(merged))


def test_vix_from_a_file_goes_before_the_column(minutes, tmp_path):
    path, vix = tmp_path / "m.csv", tmp_path / "vix.csv"
    path.write_text(notes(frame_of(minutes)))
    vix.write_text("DATE,CLOSE\n2017-12-29,11.04\n")
    assert set(pl.read_csv(io.BytesIO(merge(path, vix).csv))["vix"]) == {11.04}


@pytest.mark.parametrize(
    "text",
    [
        "observation_date,VIXCLS\n2024-01-01,\n2024-01-02,13.20\n2024-01-03,14.04\n",
        "DATE,VIXCLS\n2024-01-01,.\n2024-01-02,13.20\n2024-01-03,14.04\n",
        "Date,Close\n02-Jan-2024,13.20\n03-JAN-2024,14.04\n",
        "Price,Close,Open\nTicker,^VIX,^VIX\nDate,,\n2024-01-02,13.20,13.0\n2024-01-03,14.04,14.0\n",
        "Date,Open,Close\n2024-01-02 00:00:00-06:00,13.0,13.20\n2024-01-03 00:00:00-06:00,14.0,14.04\n",
        "time,open,close\n1704205800,13.0,13.20\n1704292200,14.0,14.04\n",
        "time,open,close\n2024-01-02T08:30:00-06:00,13.0,13.20\n2024-01-03T08:30:00-06:00,14.0,14.04\n",
        'Date,Price,Open,Vol.\n"Jan 03, 2024","14.04","14.0","-"\n"Jan 02, 2024","13.20","13.0","-"\n',
    ],
    ids=[
        *("FRED", "FRED with points", "names of months", "yfinance", "yfinance's history"),
        *("TradingView in seconds", "TradingView", "Investing.com"),
    ],
)
def test_vix_of_other_sources(tmp_path, text):
    path = tmp_path / "vix.csv"
    path.write_text(text)
    vix = read_vix(path)
    assert (vix.close.tolist(), vix.daily) == ([13.20, 14.04], True)
    assert vix.published.tolist() == [1704230100, 1704316500]


def test_vix_bars_that_begin_at_midnight_are_known_at_their_end(tmp_path):
    path = tmp_path / "vix.csv"
    path.write_text("time,close\n2024-01-02T00:00:00-06:00,13.20\n2024-01-02T00:05:00-06:00,14.04\n")
    vix = read_vix(path)
    assert (vix.published.tolist(), vix.daily) == ([1704175500, 1704175800], False)


def test_only_a_day_without_a_value_is_left_out(tmp_path):
    path = tmp_path / "vix.csv"
    for text, message in (
        ("observation_date,VIXCLS\n2024-01-01,\n2024-01-02,n/a\n", "line 3: close is 'n/a', not a number"),
        ("observation_date,VIXCLS\n2024-01-01,\n2024-01-02,.\n", "there is no VIX in any row"),
        ("DATE,CLOSE\n2024-01-02,\n2024-01-03,14.04\n", "line 2: close is an empty cell"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_vix(path)


def test_without_any_vix_the_option_is_named(tmp_path):
    path = tmp_path / "bars.csv"
    path.write_text("ts,open,high,low,close,volume\n2024-01-03T15:00:00Z,100,101,99,100,1\n")
    with pytest.raises(UserError, match="there is no column vix; give the file of VIX values with --vix"):
        merge(path, None, stamp_side="start")


def test_prices_are_not_taken_for_vix(minutes, tmp_path):
    prices = tmp_path / "es.csv"
    prices.write_text("DATE,CLOSE\n2017-12-29,2673.00\n2018-01-02,2694.25\n")
    with pytest.raises(UserError, match=r"es\.csv: half of its closes are above .* between 5 and 200"):
        merge(minutes, prices)


@pytest.mark.parametrize(("dates", "month"), [("month-first", 3), ("day-first", 4)])
def test_a_date_that_can_be_read_in_two_ways_is_asked_for(tmp_path, dates, month):
    path = tmp_path / "day.csv"
    rows = "".join(f"03/04/2024 15:0{minute},100,101,99,100,1\n" for minute in range(2))
    path.write_text("time,open,high,low,close,volume\n" + rows)
    with pytest.raises(UserError, match="say it with --dates month-first or --dates day-first"):
        read_vendor(path, zone="UTC", stamp_side="start")
    read = read_vendor(path, zone="UTC", stamp_side="start", dates=dates)
    assert str(np.datetime64(int(read.frame["ts"][0]), "s"))[:7] == f"2024-{month:02}"


@pytest.mark.slow
@pytest.mark.parametrize("zone", [ZONE, "America/Chicago", "UTC"])
@pytest.mark.parametrize(("shift", "side"), [("0m", "start"), ("1m", "end")])
def test_regular_hours_show_zone_and_side(minutes, tmp_path, zone, shift, side):
    path = tmp_path / "rth.csv"
    frame, clock = frame_of(minutes, zone=zone, shift=shift), frame_of(minutes, "%H:%M")["ts"]
    frame.filter(clock.is_between(pl.lit("09:30"), pl.lit("15:59"))).write_csv(path)
    read = read_vendor(path)
    assert (read.zone, read.stamp_side) == (zone, side)


@pytest.mark.parametrize(("shift", "side"), [("0m", "start"), ("1m", "end")])
def test_ends_at_the_close_show_the_side_where_evenings_begin_late(minutes, tmp_path, shift, side):
    frame = frame_of(minutes, shift=shift)
    late = frame["ts"].str.contains(r"-\d[05] 18:0[0-2]:")
    (tmp_path / "late.csv").write_text(frame.filter(~late).write_csv())
    read = read_vendor(tmp_path / "late.csv")
    assert (read.zone, read.stamp_side) == (ZONE, side)


def test_starts_alone_never_show_that_they_are_ends(minutes, tmp_path):
    frame = frame_of(minutes)
    (tmp_path / "open.csv").write_text(frame.filter(~frame["ts"].str.contains(" 18:0[0-2]:")).write_csv())
    with pytest.raises(UserError, match="say it with --stamps start or --stamps end"):
        read_vendor(tmp_path / "open.csv")


@pytest.mark.parametrize(
    ("written", "price"), [('"4.001,50"', 4001.5), ('"4,001.50"', 4001.5), ('"4001,5"', 4001.5), ('"4,001"', 4001.0)]
)
def test_separators_in_numbers(tmp_path, written, price):
    path = tmp_path / "b.csv"
    path.write_text(f"ts,open,high,low,close,volume\n2024-01-03T15:00:00Z,{written},{written},{written},{written},7\n")
    assert read_vendor(path, stamp_side="start").frame["high"].to_list() == [price]
