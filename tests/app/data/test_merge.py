import io
import json

import numpy as np
import polars as pl
import pytest

from tests.app.data.scid import scid_bytes
from vpoc.cli import run
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import load_bars
from vpoc.data.merge import as_of, merge
from vpoc.data.readers.clock import ZONES, has_break
from vpoc.errors import UserError

VIX = "DATE,OPEN,HIGH,LOW,CLOSE\n2024-01-02,1,1,1,13.20\n2024-01-03,1,1,1,14.04\n"


def bars_csv(*stamps, header="time,open,high,low,close,volume", row="100,101,99,100.5,7"):
    return header + "\n" + "".join(f"{stamp},{row}\n" for stamp in stamps)


def day_csv(zone, offset="", minutes=30, last=(2024, 1, 19)):
    """Return 23-hour days, 18:00-17:00 New York, in UTC, and as a CSV whose stamps are in `zone`."""
    utc = pl.datetime_range(pl.datetime(2024, 1, 8), pl.datetime(*last), f"{minutes}m", eager=True)
    new_york = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")
    open_ = utc.filter((new_york.dt.hour() != 17) & (new_york.dt.weekday() <= 5))
    local = open_.dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.to_string("%Y-%m-%d %H:%M:%S")
    return open_, bars_csv(*(stamp + offset for stamp in local))


@pytest.fixture
def files(tmp_path):
    def write(bars, vix=VIX):
        (tmp_path / "bars.csv").write_text(bars)
        (tmp_path / "vix.csv").write_text(vix)
        return tmp_path / "bars.csv", tmp_path / "vix.csv"

    return write


def rows(merged):
    return pl.read_csv(io.BytesIO(merged.csv), infer_schema=False)


def test_vix_is_known_from_1615_new_york_by_the_end_of_the_bar(files):
    stamps = ["2024-01-02T21:13:00Z", "2024-01-02T21:14:00Z", "2024-01-02T21:15:00Z", "2024-01-03T21:14:00Z"]
    merged = merge(*files(bars_csv(*stamps)))
    # The bar that starts at 16:14 ends at 16:15, when the day's VIX close is known.
    assert rows(merged)["vix"].to_list() == [None, "13.20", "13.20", "14.04"]
    assert merged.without_vix == 1


def test_an_old_vix_is_counted(files):
    assert merge(*files(bars_csv("2024-02-02T21:13:00Z"))).stale_vix == 1


@pytest.mark.parametrize(
    ("last", "missing"),
    [
        ("2024-01-04T21:13:00Z", None),
        # It ends at 16:15 in New York.
        ("2024-01-04T21:14:00Z", "2024-01-04"),
        ("2024-01-05T00:30:00Z", "2024-01-04"),
        ("2024-01-08T00:30:00Z", "2024-01-05"),
    ],
)
def test_a_daily_vix_that_ends_before_the_bars_is_reported(files, last, missing):
    vix = "date,close\n2024-01-02,13.20\n2024-01-03,14.04\n"
    minutes = [f"2024-01-03T21:{minute}:00Z" for minute in range(10, 20)]
    bars, vix = files(bars_csv(*minutes, last), vix)
    had = "the last bars have that of 2024-01-03; merge again once it has the later one"
    assert merge(bars, vix).warnings == ([f"{vix}: the VIX of {missing} is not in it: {had}"] if missing else [])


def test_a_weekend_or_holiday_without_a_vix_is_not_reported(files):
    # A weekend, and on Monday Martin Luther King's birthday.
    paths = files(bars_csv("2024-01-16T15:00:00Z"), "date,close\n2024-01-11,13.20\n2024-01-12,14.04\n")
    assert merge(*paths).warnings == []


def test_columns_are_found_by_name(files):
    content = "Volume,low,ts_event,high,close,open\n7,99,2024-01-03T15:00:00Z,101,100.5,100\n"
    row = rows(merge(*files(content))).row(0, named=True)
    assert row == {
        "ts": "2024-01-03T15:00:00Z",
        "open": "100.00",
        "high": "101.00",
        "low": "99.00",
        "close": "100.50",
        "volume": "7",
        "vix": "13.20",
    }


@pytest.mark.parametrize("zone", ZONES)
def test_the_zone_is_found_by_the_daily_break(files, zone):
    utc, content = day_csv(zone)
    merged = merge(*files(content))
    assert merged.zone == zone
    assert rows(merged)["ts"].to_list() == utc.dt.to_string("%Y-%m-%dT%H:%M:%SZ").to_list()


def test_another_zone_must_be_said(files):
    utc, content = day_csv("Asia/Tokyo")
    paths = files(content)
    with pytest.raises(UserError, match="say it with --zone"):
        merge(*paths)
    assert rows(merge(*paths, zone="Asia/Tokyo"))["ts"][0] == utc.dt.to_string("%Y-%m-%dT%H:%M:%SZ")[0]
    with pytest.raises(UserError, match="no such time zone"):
        merge(*paths, zone="Mars/Olympus")


def test_a_zone_that_is_wrong_for_a_few_weeks_is_refused(files):
    """A clock that is changed a week late is still right on more than nine days of ten."""
    utc, content = day_csv("America/New_York", last=(2024, 6, 28))
    header, *lines = content.splitlines(keepends=True)
    late = utc.is_between(pl.datetime(2024, 3, 10), pl.datetime(2024, 3, 15)).to_list()
    hour_less = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("Etc/GMT+5").dt.to_string("%Y-%m-%d %H:%M:%S")
    moved = [hour_less[row] + lines[row][19:] if is_late else lines[row] for row, is_late in enumerate(late)]
    assert merge(*files(content)).zone == "America/New_York"
    with pytest.raises(UserError, match="say it with --zone"):
        merge(*files(header + "".join(moved)))


def test_two_odd_days_in_a_row_do_not_hide_the_zone(files):
    """The two days are a holiday and the half day before it."""
    utc, content = day_csv("America/New_York", last=(2024, 3, 8))
    header, *lines = content.splitlines(keepends=True)
    hour = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York").dt.to_string("%d %H").to_list()
    odd = {f"{day} {hour}" for day in (23, 24) for hour in (13, 14, 15, 16)}
    kept = [line for line, stamp in zip(lines, hour, strict=True) if stamp not in odd]
    assert merge(*files(header + "".join(kept))).zone == "America/New_York"


@pytest.mark.parametrize(("minutes", "zone"), [(1, "UTC"), (5, "America/New_York"), (30, "America/Chicago")])
def test_stamps_of_the_end_of_bars_become_starts(files, minutes, zone):
    utc, _ = day_csv("UTC", "Z", minutes)
    ends = utc.dt.offset_by(f"{minutes}m").dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    merged = merge(*files(bars_csv(*ends.dt.to_string("%Y-%m-%d %H:%M:%S"))))
    assert (merged.zone, merged.stamp_side, merged.bar_seconds) == (zone, "end", 60 * minutes)
    assert rows(merged)["ts"].to_list() == utc.dt.to_string("%Y-%m-%dT%H:%M:%SZ").to_list()


def test_prices_off_the_grid_are_not_hidden_by_rounding(files):
    stamps = [f"2024-01-03T{hour:02}:{minute:02}:00Z" for hour in range(20) for minute in range(60)]
    content = bars_csv(*stamps)
    assert merge(*files(content)).off_grid == 0
    one = content.replace("T15:00:00Z,100,", "T15:00:00Z,100.001,")
    assert merge(*files(one)).off_grid == 1
    with pytest.raises(UserError, match=r"line 902: a price is not a multiple of 0.25 \(2 rows\)"):
        merge(*files(one.replace("T15:01:00Z,100,101,99,", "T15:01:00Z,100,101,98.999,")))


def test_a_day_with_one_vix_twice_is_kept_once(files):
    doubled = VIX + VIX.splitlines(keepends=True)[1]
    assert rows(merge(*files(bars_csv("2024-01-04T15:00:00Z"), doubled)))["vix"].to_list() == ["14.04"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2024-01-02,1,1,1,13.21", "line 4: another row has the same date but another close"),
        ("2024-01-04,1,1,1,0", "line 4: close is 0, not above zero"),
        ("2024-01-04,1,1,1,-3", "line 4: close is -3, not above zero"),
        ("0024-01-04,1,1,1,13", "line 4: date is '0024-01-04', not in the years 1980 to 2100"),
    ],
)
def test_vix_values_that_cannot_be_right(files, line, expected):
    with pytest.raises(UserError, match=expected):
        merge(*files(bars_csv("2024-01-04T15:00:00Z"), VIX + line + "\n"))


@pytest.mark.parametrize(
    "vix",
    [
        "date,close\n01/02/2024,13.20\n01/03/2024,14.04\n01/08/2024,13.10\n",
        "Date;Open;Close\n2024-01-02;1;13.20\n2024-01-03;1;14.04\n",
        "Date,Close\n2024-01-02 00:00:00,13.20\n2024-01-03 00:00:00,14.04\n",
        "Date,Close\n02/01/2024,13.20\n03/01/2024,14.04\n08/01/2024,13.10\n",
        "Date,Close\n02.01.2024,13.20\n15.01.2024,14.04\n",
        "Date,Close\n01-02-2024,13.20\n01-15-2024,14.04\n",
        "Date;Close\n02.01.2024;13,20\n15.01.2024;14,04\n",
        "date,vix\n2024-01-02,13.20\n2024-01-03,14.04\n",
    ],
)
def test_daily_vix_in_other_forms(files, vix):
    stamps = ["2024-01-02T21:13:00Z", "2024-01-02T21:14:00Z"]
    merged = merge(*files(bars_csv(*stamps), vix))
    assert merged.vix == "daily VIX"
    assert rows(merged)["vix"].to_list() == [None, "13.20"]


def test_vix_bars_with_times_of_digits(files):
    """TradeStation's export, with the zone that it does not say."""
    vix = "Date,Time,Close\n01/16/2024,1000,13.2\n01/16/2024,1005,13.4\n01/16/2024,1010,13.6\n"
    bars, vix = files(bars_csv("2024-01-16T15:09:00Z"), vix)
    merged = merge(bars, vix, vix_zone="America/New_York")
    assert (merged.vix, rows(merged)["vix"].to_list()) == ("intraday VIX", ["13.40"])


def test_a_file_without_vix_says_which_name_is_looked_for(files):
    with pytest.raises(UserError, match=r"vix.csv: no column with the VIX; there are: date, value; name it close in"):
        merge(*files(bars_csv("2024-01-04T15:00:00Z"), "date,value\n2024-01-02,13.20\n"))


def test_a_daily_vix_whose_rows_do_not_show_the_month_is_asked_about(files):
    paths = files(bars_csv("2024-01-02T21:14:00Z"), "Date,Close\n02/01/2024,13.20\n")
    with pytest.raises(UserError, match="line 2: '02/01/2024' can be read as month and day or as day and month"):
        merge(*paths)
    assert rows(merge(*paths, dates="day-first"))["vix"].to_list() == ["13.20"]
    assert rows(merge(*paths, dates="month-first"))["vix"].to_list() == [None]
    days = "".join(f"{day:02}/01/2024,13.{day:02}\n" for day in (2, 3, 4, 5, 8, 9, 10, 11, 12))
    paths = files(bars_csv("2024-01-02T21:14:00Z"), f"Date,Close\n{days}")
    assert rows(merge(*paths))["vix"].to_list() == ["13.02"]
    with pytest.raises(UserError, match="its values are 30 days apart"):
        merge(*paths, dates="month-first")


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(("form", "dates"), [("01/{:02}/{}", "day-first"), ("{:02}/01/{}", "month-first")])
def test_a_vix_of_months_is_not_taken_for_one_of_days(files, form, dates, in_order):
    """The first days of a year's months can also be read as days of January; only several years tell the two apart."""

    def vix(*years):
        lines = [f"{form.format(month, year)},13.{month:02}\n" for year in years for month in range(1, 13)]
        return "Date,Close\n" + "".join(lines if in_order else reversed(lines))

    stamps = ["2024-01-11T21:14:00Z", "2024-03-01T21:14:00Z"]
    paths = files(bars_csv(*stamps), vix(2024))
    with pytest.raises(UserError, match=r"line 2: .* can be read as month and day or as day and month"):
        merge(*paths)
    for months in (lambda: merge(*paths, dates=dates), lambda: merge(*files(bars_csv(*stamps), vix(2023, 2024)))):
        with pytest.raises(UserError, match=r"its values are 3[01] days apart: what is known when\?"):
            months()


@pytest.mark.parametrize("stamp", ["2024-01-{:02}", "2024-01-{:02} 00:00:00-06:00", "2024-01-{:02}T14:30:00Z"])
def test_a_vix_of_weeks_is_refused_because_its_close_comes_days_after_its_date(files, stamp):
    lines = "".join(f"{stamp.format(day)},13.{day:02}\n" for day in (1, 8, 15, 22, 29))
    with pytest.raises(UserError, match="its values are 7 days apart"):
        merge(*files(bars_csv("2024-01-11T21:14:00Z"), f"Date,Close\n{lines}"))


def test_an_intraday_vix_is_known_at_the_end_of_its_bar(files):
    vix = "time,open,high,low,close\n1704207600,1,1,1,13.2\n1704207900,1,1,1,13.4\n1704208200,1,1,1,13.6\n"
    stamps = [f"2024-01-02T15:{minute:02}:00Z" for minute in (3, 4, 8, 9, 10)]
    merged = merge(*files(bars_csv(*stamps), vix))
    # The VIX file has five-minute bars from 15:00, 15:05 and 15:10; the bars to merge end a minute after their stamps.
    assert merged.vix == "intraday VIX"
    assert rows(merged)["vix"].to_list() == [None, "13.20", "13.20", "13.40", "13.40"]


def test_vix_bars_without_an_offset_need_a_zone_of_their_own(files):
    """That of the bars of ES is not taken: Cboe's own clock, for one, is Chicago's."""
    vix = "Date,Time,Close\n2024-01-02,09:30:00,13.2\n2024-01-02,09:31:00,13.4\n"
    paths = files(bars_csv("2024-01-02T14:31:00Z"), vix)
    with pytest.raises(UserError, match="VIX bars do not say their time zone; say it with --vix-zone"):
        merge(*paths, zone="America/New_York")
    assert rows(merge(*paths, vix_zone="America/New_York"))["vix"].to_list() == ["13.40"]


@pytest.mark.parametrize("wrong", ["America/New_York", "America/Chicago", "UTC"])
@pytest.mark.parametrize("zone", ["America/New_York", "America/Chicago", "UTC"])
@pytest.mark.parametrize("minutes", [1, 5, 15, 30])
@pytest.mark.parametrize("night", [False, True])
def test_a_zone_that_moves_the_close_of_the_vix_is_refused(files, zone, wrong, minutes, night):
    """An hour too early, each bar of ES would have the VIX of an hour later."""
    utc = pl.datetime_range(pl.datetime(2024, 1, 8), pl.datetime(2024, 1, 13), f"{minutes}m", eager=True)
    new_york = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")
    minute = new_york.dt.hour().cast(pl.Int64) * 60 + new_york.dt.minute()
    begun = new_york.filter(minute.is_between(570, 974) | night & ((minute < 565) | (minute >= 1215)))
    local = begun.dt.convert_time_zone(zone).dt.to_string("%Y-%m-%d %H:%M:%S")
    lines = (f"{stamp},{10 + row / 100}\n" for row, stamp in enumerate(local))
    bars, vix = files(bars_csv("2024-01-09T16:00:00Z"), "datetime,close\n" + "".join(lines))
    if wrong != zone:
        moved = f"--vix-zone {wrong} does not put the last VIX bar of the days at 16:15 New York, but {zone} does"
        with pytest.raises(UserError, match=moved):
            merge(bars, vix, vix_zone=wrong)
        return
    published = begun.dt.epoch("s") + minutes * 60
    known = int((published <= 1_704_816_060).sum()) - 1
    assert rows(merge(bars, vix, vix_zone=zone))["vix"].to_list() == [f"{10 + known / 100:.2f}"]


def test_a_later_vix_changes_nothing_before_it(files):
    """The planted leak is the VIX close of the day in a bar of the morning."""
    day = bars_csv("2024-01-03T15:00:00Z", "2024-01-03T15:01:00Z", "2024-01-03T21:15:00Z")
    before = rows(merge(*files(day)))["vix"].to_list()
    after = rows(merge(*files(day, VIX.replace("14.04", "99.00"))))["vix"].to_list()
    assert (before, after) == (["13.20", "13.20", "14.04"], ["13.20", "13.20", "99.00"])


def test_single_trades_are_kept_one_by_one(files, tmp_path):
    paths = files("")
    prices = {"open": [0.0] * 3, "high": [4000.25] * 3, "low": [4000.0] * 3, "close": [4000.0, 4000.25, 4000.25]}
    paths[0].write_bytes(scid_bytes([1_704_294_000] * 3, prices, 1, [2, 3, 3]))
    merged = merge(*paths)
    assert (merged.bar_seconds, merged.duplicates) == (0, 0)
    assert rows(merged)["volume"].to_list() == ["2", "3", "3"]
    assert rows(merged)["high"].to_list() == ["4000.00", "4000.25", "4000.25"]


def test_the_command_tells_what_it_found(files, tmp_path, capsys):
    bars, vix = files(bars_csv("2024-01-03T15:00:00Z", "2024-01-03T15:00:00Z").replace("close", "ES_close"))
    output = tmp_path / "m.csv"
    given = ["merge", "--bars", str(bars), "--vix", str(vix), "--output", str(output), "--column", "es_close=close"]
    assert run([*given, "--stamps", "start"]) == 0
    told = capsys.readouterr().out
    assert len(told.splitlines()) == 1
    assert "1 rows of 60-second bars, read as tradingview; stamps read as UTC, start of bar; 1 duplicates" in told
    assert run([*given, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["schema"], facts["rows"], facts["duplicates"], facts["format"]) == (2, 1, 1, "tradingview")
    assert "csv" not in facts
    assert run([*given, "--column", "close"]) == 2
    assert "--column close: not of the form NAME=COLUMN" in capsys.readouterr().err


def test_a_lone_morning_has_no_break():
    assert not has_break(np.array([1_704_726_000]))


@pytest.mark.parametrize(
    "stamp", ["2024-01-03T15:00:00.000000000Z", "2024-01-03 15:00:00", "20240103  15:00:00", "2024/01/03 03:00 PM"]
)
def test_known_forms_of_stamps(files, stamp):
    assert rows(merge(*files(bars_csv(stamp)), zone="UTC", stamp_side="start"))["ts"].to_list() == [
        "2024-01-03T15:00:00Z"
    ]


def test_rows_are_sorted_and_duplicates_dropped(files):
    a, b = "2024-01-03T15:00:00Z", "2024-01-03T15:01:00Z"
    merged = merge(*files(bars_csv(b, a, a)))
    assert rows(merged)["ts"].to_list() == [a, b]
    assert merged.duplicates == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (bars_csv("x"), "line 2: time is 'x', a form"),
        (bars_csv("01/03/2024 09:30:00 AM"), "line 2: '01/03/2024 09:30:00 AM' can be read as .* --dates month-first"),
        (
            bars_csv("2024-01-03T15:00:00Z") + "2024-01-03T15:00:00Z,100,101,99,100.5,8\n",
            "line 3: another row.*--fix OUT.*=symbol",
        ),
        (
            "ts,open,high,low,close,volume,symbol\n"
            "2024-01-03T15:00:00Z,100,101,99,100,1,A\n2024-01-03T15:01:00Z,100,101,99,100,1,B\n",
            "several symbols",
        ),
    ],
)
def test_what_cannot_be_merged(files, content, expected):
    with pytest.raises(UserError, match=expected):
        merge(*files(content), stamp_side="start")


def test_as_of_never_looks_ahead():
    values, age = as_of(np.array([5, 10, 15]), np.array([10, 20]), np.array([1.0, 2.0]))
    assert np.isnan(values[0])
    assert values[1:].tolist() == [1.0, 1.0]
    assert np.isnan(age[0])


@pytest.mark.real_data
def test_minutes_of_2013(real_data, tmp_path):
    merged = merge(real_data("es-1min-2013-10.csv"), real_data("vix-daily.csv"))
    path = tmp_path / "m.csv"
    path.write_bytes(merged.csv)
    assert merged.zone == "UTC"
    bars = load_bars(path)
    assert len(bars) == 6826
    assert split_sessions(bars).complete.sum() == 5
    assert not np.isnan(bars.vix).any()


@pytest.mark.real_data
def test_five_minutes_of_2026(real_data, tmp_path):
    merged = merge(real_data("es-5min-2026.csv"), real_data("vix-daily.csv"))
    path = tmp_path / "m.csv"
    path.write_bytes(merged.csv)
    assert merged.zone == "America/New_York"
    bars = load_bars(path)
    assert (merged.stamp_side, bars.bar_seconds) == ("start", 300)
    assert split_sessions(bars).complete.sum() == 50
    assert (bars.volume == 0).sum() == 44
