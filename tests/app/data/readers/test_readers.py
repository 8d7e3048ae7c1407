"""Tests of the vendors' formats: bars that are written in a vendor's layout are read back exactly."""

import zipfile

import numpy as np
import polars as pl
import pytest

from tests.app.data.scid import scid_bytes
from vpoc.data.readers import parquet, read_vendor, scid
from vpoc.errors import UserError
from vpoc.files import sha256

PRICES = ("open", "high", "low", "close")


def synthetic(minutes=1, first=(2024, 1, 8), last=(2024, 1, 13), *, seed=1):
    """Return a week of 23-hour days: ts (seconds UTC), prices on the tick grid, volume."""
    utc = pl.datetime_range(pl.datetime(*first), pl.datetime(*last), f"{minutes}m", eager=True)
    new_york = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")
    utc = utc.filter((new_york.dt.hour() != 17) & (new_york.dt.weekday() <= 5))
    random = np.random.default_rng(seed)
    close = 19_000 + np.cumsum(random.integers(-3, 4, len(utc)))
    open_ = close - random.integers(-3, 4, len(utc))
    ticks = {
        "open": open_,
        "high": np.maximum(open_, close) + random.integers(0, 4, len(utc)),
        "low": np.minimum(open_, close) - random.integers(0, 4, len(utc)),
        "close": close,
    }
    frame = pl.DataFrame({"ts": utc.dt.epoch("s"), **{name: ticks[name] / 4 for name in PRICES}})
    return frame.with_columns(volume=pl.Series(random.integers(0, 5000, len(utc)), dtype=pl.Int64))


def local(frame, zone, form):
    return frame.select(
        pl.from_epoch("ts", "s").dt.replace_time_zone("UTC").dt.convert_time_zone(zone).dt.strftime(form)
    ).to_series()


def require_same(read, frame):
    for name in ("ts", *PRICES, "volume"):
        assert read.frame[name].to_list() == frame[name].to_list(), name


def write(path, columns, *, header=True, separator=","):
    pl.DataFrame(columns).write_csv(path, include_header=header, separator=separator)
    return path


def columns_of(frame, **stamp):
    return {**stamp, **{name: frame[name] for name in (*PRICES, "volume")}}


@pytest.fixture
def path(tmp_path):
    # The file name gives no hint of the format, on purpose.
    return tmp_path / "data.bin"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_with_names_of_the_users_own(path, separator):
    frame = synthetic()
    stamp = local(frame, "America/Chicago", "%Y-%m-%d %H:%M:%S")
    columns = {"es_volume": frame["volume"], "when": stamp, "x": stamp, **{f"ES_{n}": frame[n] for n in PRICES}}
    write(path, columns, separator=separator)
    own = {"when": "stamp", "es_volume": "volume", **{f"es_{name}": name for name in PRICES}}
    read = read_vendor(path, columns=own)
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("csv", "America/Chicago", "start", 60)
    require_same(read, frame)
    with pytest.raises(UserError, match=r"no stamp column; there are: es_volume, when.*--column NAME=stamp .*=time"):
        read_vendor(path)
    with pytest.raises(UserError, match="--column nowhere=close: nowhere is not there"):
        read_vendor(path, columns={**own, "nowhere": "close"})
    with pytest.raises(UserError, match=r"--column when=hour: no such column; .* date, time"):
        read_vendor(path, columns={"when": "hour"})


@pytest.mark.parametrize("own", [None, {"up": "volume"}])
def test_a_part_of_the_volume_is_not_taken_for_the_whole(path, own):
    """TradeStation's export of intraday bars."""
    path.write_text('"Date","Time","Open","High","Low","Close","Up","Down"\n01/08/2024,0931,4740,4741,4740,4741,8,5\n')
    with pytest.raises(UserError, match=r"up and down are parts of the volume.*; add a column volume"):
        read_vendor(path, columns=own)


@pytest.mark.parametrize(
    ("date", "time"),
    [
        ("%Y/%m/%d", "%H:%M:%S"),
        ("%Y/%m/%d", "%I:%M:%S %p"),
        ("%m/%d/%Y", "%H%M"),
        ("%m/%d/%Y", "%H%M%S"),
        ("%d.%m.%Y", "%H%M"),
        ("%Y.%m.%d", "%H:%M:%S"),
    ],
    ids=["Sierra Chart", "AM and PM", "TradeStation", "six digits", "days first", "MetaTrader"],
)
def test_date_and_time_in_two_columns(path, date, time):
    """Sierra Chart's text export: the close is named Last, and columns with numbers of trades follow."""
    frame = synthetic(5)
    columns = {
        "Date": local(frame, "America/New_York", date),
        " Time": local(frame, "America/New_York", time),
        " Open": frame["open"],
        " High": frame["high"],
        " Low": frame["low"],
        " Last": frame["close"],
        " Volume": frame["volume"],
        " NumberOfTrades": frame["volume"],
    }
    dates = "month-first" if date.startswith("%m") else None
    read = read_vendor(write(path, columns), dates=dates)
    assert (read.zone, read.stamp_side, read.bar_seconds) == ("America/New_York", "start", 300)
    require_same(read, frame)


@pytest.mark.parametrize("date", ["01/15/2018", "12/31/2018", "01-15-2018", "15.01.2018"])
def test_a_time_of_four_digits_takes_none_from_the_date(path, date):
    first = date.replace("15", "02").replace("31", "03")
    path.write_text(f"Date,Time,Open,High,Low,Close,Volume\n{first},0930,1,1,1,1,1\n{date},0931,1,1,1,1,1\n")
    read = read_vendor(path, zone="America/New_York", stamp_side="start")
    assert [str(stamp)[:4] for stamp in pl.from_epoch(read.frame["ts"])] == ["2018", "2018"]


def test_a_time_beside_a_count_of_seconds_is_no_part_of_it(path):
    frame = synthetic(5)
    columns = {"timestamp": frame["ts"], "time": local(frame, "UTC", "%H%M"), **columns_of(frame)}
    require_same(read_vendor(write(path, columns)), frame)


def test_the_merged_csv(path):
    frame = synthetic()
    stamp = local(frame, "UTC", "%Y-%m-%dT%H:%M:%SZ")
    symbols = ["ESH4"] * len(frame)
    read = read_vendor(write(path, {**columns_of(frame, ts=stamp), "vix": [13.2] * len(frame), "symbol": symbols}))
    assert (read.format, read.zone, read.stamp_side) == ("merged", "UTC", "start")
    assert read.frame["symbol"].to_list() == symbols
    assert read.frame["line"].to_list() == list(range(2, len(frame) + 2))
    require_same(read, frame)


@pytest.mark.parametrize("pretty", [True, False])
def test_databento(path, pretty):
    frame = synthetic()
    stamp = local(frame, "UTC", "%Y-%m-%dT%H:%M:%S.000000000Z") if pretty else frame["ts"] * 10**9
    prices = {name: frame[name] if pretty else (frame[name] * 10**9).cast(pl.Int64) for name in PRICES}
    front = {"ts_event": stamp, "rtype": 33, "publisher_id": 1, "instrument_id": 17077}
    read = read_vendor(write(path, {**front, **prices, "volume": frame["volume"], "symbol": "ESH4"}))
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("databento", "UTC", "start", 60)
    require_same(read, frame)


@pytest.mark.parametrize("name", ["", " US/Eastern"])
def test_interactive_brokers(path, name):
    frame = synthetic(30)
    gap = "" if name else " "
    columns = {"datetime": local(frame, "America/New_York", f"%Y%m%d {gap}%H:%M:%S{name}")}
    read = read_vendor(write(path, {**columns, **{n: frame[n] for n in ("high", "low", "open", "close", "volume")}}))
    zone = name.strip() or "America/New_York"
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("interactive-brokers", zone, "start", 1800)
    require_same(read, frame)


def test_interactive_brokers_of_regular_hours_needs_a_zone(path):
    frame = synthetic(30).filter(pl.col("ts") % 86_400 // 1800 >= 29)
    stamp = local(frame, "America/New_York", "%Y%m%d  %H:%M:%S")
    frame, stamp = (part.filter(stamp.str.slice(10, 2).cast(pl.Int64).is_between(10, 15)) for part in (frame, stamp))
    write(path, columns_of(frame, datetime=stamp))
    with pytest.raises(UserError, match="say it with --zone"):
        read_vendor(path)
    require_same(read_vendor(path, zone="America/New_York"), frame)


@pytest.mark.parametrize("unix", [True, False])
def test_tradingview(path, unix):
    frame = synthetic(5, (2024, 3, 4), (2024, 3, 16))
    stamp = frame["ts"] if unix else local(frame, "America/Chicago", "%Y-%m-%dT%H:%M:%S%:z")
    columns = {"time": stamp, **{name: frame[name] for name in PRICES}, "Volume": frame["volume"]}
    lines = pl.DataFrame(columns).write_csv().splitlines()
    # TradingView writes an indicator as two columns of one name, which have no value in the first rows.
    text = "\n".join([lines[0] + ",Plot,Plot", lines[1] + ",,", *(line + ",1.5,NaN" for line in lines[2:])])
    path.write_text(text + "\n")
    read = read_vendor(path)
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("tradingview", "UTC", "start", 300)
    require_same(read, frame)


@pytest.mark.parametrize("offset", ["-05:00", "+00:00"])
def test_yfinance(path, offset):
    frame = synthetic()
    stamp = local(frame, "Etc/GMT+5" if offset[0] == "-" else "UTC", "%Y-%m-%d %H:%M:%S") + offset
    columns = {"Datetime": stamp, **{name.title(): frame[name] for name in PRICES}, "Adj Close": frame["close"] - 1}
    read = read_vendor(write(path, {**columns, "Volume": frame["volume"]}))
    assert (read.format, read.zone, read.stamp_side) == ("yfinance", "UTC", "start")
    require_same(read, frame)


def test_yfinance_with_a_header_of_three_lines(path):
    frame, other = synthetic(), synthetic(seed=2)
    stamp = local(frame, "UTC", "%Y-%m-%d %H:%M:%S+00:00")
    names = ("close", "high", "low", "open", "volume")
    body = {"d": stamp, **{n: frame[n] for n in names}}
    lines = pl.DataFrame(body).write_csv(include_header=False)
    path.write_text("Price,Close,High,Low,Open,Volume\nTicker" + ",ES=F" * 5 + "\nDatetime,,,,,\n" + lines)
    read = read_vendor(path)
    assert (read.format, read.frame["line"][0]) == ("yfinance", 4)
    require_same(read, frame)
    two = {"d": stamp, **{f"{n}{i}": which[n] for n in names for i, which in enumerate((other, frame))}}
    lines = pl.DataFrame(two).write_csv(include_header=False)
    heads = "Price," + ",".join(f"{n.title()},{n.title()}" for n in names)
    path.write_text(f"{heads}\nTicker{',NQ=F,ES=F' * 5}\nDatetime{',' * 10}\n{lines}")
    with pytest.raises(UserError, match=r"line 2: several symbols in one file \(ES=F, NQ=F\)"):
        read_vendor(path)
    require_same(read_vendor(path, symbol="ES=F"), frame)


def test_kibot(path):
    frame = synthetic()
    columns = {"d": local(frame, "America/New_York", "%m/%d/%Y"), "t": local(frame, "America/New_York", "%H:%M")}
    read = read_vendor(write(path, columns_of(frame, **columns), header=False))
    assert (read.format, read.zone, read.stamp_side, read.frame["line"][0]) == ("kibot", "America/New_York", "start", 1)
    require_same(read, frame)


@pytest.mark.parametrize("zone", ["UTC", "America/Chicago"])
def test_ninjatrader_stamps_the_end(path, zone):
    frame = synthetic()
    ends = frame.with_columns(pl.col("ts") + 60)
    columns = columns_of(frame, d=local(ends, zone, "%Y%m%d %H%M%S"))
    read = read_vendor(write(path, columns, header=False, separator=";"))
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("ninjatrader", zone, "end", 60)
    require_same(read, frame)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2024-01-08 10:00:00,1,2,0.5,1,7\n", "line 1: there is no header"),
        ("01/08/2024,10:00,4000,3999,4001,4000,7\n", "line 1: open or close is outside low..high"),
        ("01/08/2024,10:00,4000,4001,3999,4000,7\n", "say it with --zone"),
        ("20240108 100000;4000;4001;3999;4000;7\n", "say it with --zone"),
    ],
)
def test_what_no_header_and_no_break_leave_open(path, line, expected):
    path.write_text(line)
    with pytest.raises(UserError, match=expected):
        read_vendor(path)


def write_lean(path, frame, *, root="es", expiry="202403"):
    days = frame.with_columns(day=pl.col("ts") // 86_400).partition_by("day")
    with zipfile.ZipFile(path, "a") as archive:
        for day in days:
            rows = day.select((pl.col("ts") % 86_400 * 1000).alias("ms"), *PRICES, "volume")
            name = pl.from_epoch(day["ts"], "s").dt.strftime("%Y%m%d")[0]
            archive.writestr(f"{name}_{root}_minute_trade_{expiry}.csv", rows.write_csv(include_header=False))
    return path


def test_lean(path):
    frame = synthetic()
    read = read_vendor(write_lean(path, frame))
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("lean", "UTC", "start", 60)
    assert read.frame["symbol"].unique().to_list() == ["ESH4"]
    require_same(read, frame)
    assert read.where(0).endswith("20240108_es_minute_trade_202403.csv, line 1")


def test_a_folder_of_lean(tmp_path):
    frame = synthetic()
    for number, day in enumerate(frame.with_columns(day=pl.col("ts") // 86_400).partition_by("day")):
        write_lean(tmp_path / f"{number}.zip", day)
    with zipfile.ZipFile(tmp_path / "9.zip", "w") as archive:
        archive.writestr("20240108_es_minute_quote_202403.csv", "0,1,1,1,1,1,2,2,2,2,1\n")
    require_same(read_vendor(tmp_path), frame)


@pytest.mark.parametrize("scale", [1, 100])
def test_sierra_scid(path, scale):
    frame = synthetic()
    prices = {name: frame[name] * scale for name in PRICES}
    path.write_bytes(scid_bytes(frame["ts"], prices, 12, frame["volume"]))
    read = read_vendor(path)
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("sierra-scid", "UTC", "start", 60)
    assert read.counts == ({} if scale == 1 else {"prices_divided_by_100": len(frame)})
    require_same(read, frame)


def test_the_hash_of_a_sierra_file_is_that_of_the_records_that_were_read(path, monkeypatch):
    frame = synthetic()
    content = scid_bytes(frame["ts"], {name: frame[name] for name in PRICES}, 12, frame["volume"])
    path.write_bytes(content)
    read_prices = scid._prices

    def changed_then_read(*given):
        path.write_bytes(content[:-12] + bytes(12))
        return read_prices(*given)

    monkeypatch.setattr(scid, "_prices", changed_then_read)
    read = read_vendor(path)
    assert read.sha256 == sha256(content)
    require_same(read, frame)


def test_sierra_scid_of_trades(path):
    """Open is 0 or a mark of an unbundled trade, High is the ask, Low the bid; a second may have several trades."""
    frame = synthetic()
    seconds = 1_704_700_000 + np.arange(len(frame)) // 7
    marks = np.resize(np.array([0, 0, -1.99900095e37, -1.99900197e37], dtype=np.float32), len(frame))
    prices = {"open": marks, "high": frame["close"] + 0.25, "low": frame["close"] - 0.25, "close": frame["close"]}
    path.write_bytes(scid_bytes(seconds, prices, 1, frame["volume"]))
    read = read_vendor(path)
    assert read.bar_seconds == 0
    require_same(read, frame.with_columns(ts=seconds, **dict.fromkeys(PRICES, frame["close"])))
    path.write_bytes(scid_bytes(seconds, {**prices, "open": np.where(np.arange(len(frame)) == 3, 4750, marks)}, 1, 1))
    with pytest.raises(UserError, match="record 4: single trades and bars in one file"):
        read_vendor(path)


@pytest.mark.parametrize("stamp", ["aware", "naive", "text", "nanoseconds"])
def test_parquet(path, stamp):
    frame = synthetic()
    utc = pl.from_epoch(frame["ts"], "s").dt.replace_time_zone("UTC")
    stamps = {
        "aware": utc.dt.convert_time_zone("America/Chicago").dt.cast_time_unit("ns"),
        "naive": utc.dt.convert_time_zone("America/New_York").dt.replace_time_zone(None),
        "text": local(frame, "UTC", "%Y-%m-%d %H:%M:%S+00:00"),
        "nanoseconds": frame["ts"] * 10**9,
    }
    columns = {"Volume": frame["volume"].cast(pl.UInt32), **{n.title(): frame[n] for n in PRICES}}
    pl.DataFrame({**columns, "Timestamp": stamps[stamp], "ticker": "ESH4"}).write_parquet(path)
    read = read_vendor(path)
    zone = "America/New_York" if stamp == "naive" else "UTC"
    assert (read.format, read.zone, read.stamp_side, read.bar_seconds) == ("parquet", zone, "start", 60)
    assert read.frame["symbol"].unique().to_list() == ["ESH4"]
    require_same(read, frame)


@pytest.mark.parametrize("last", [(2024, 4, 20), (2024, 3, 13)])
def test_a_clock_without_daylight_saving_is_noticed(path, last):
    """An export in "EST" all year fits New York only in winter, even if nearly all days of the file are in winter."""
    frame = synthetic(5, (2024, 2, 5), last)
    write(path, columns_of(frame, datetime=local(frame, "Etc/GMT+5", "%Y-%m-%d %H:%M:%S")))
    read = read_vendor(path)
    assert (read.zone, read.stamp_side) == ("Etc/GMT+5", "start")
    require_same(read, frame)


def test_a_zone_that_contradicts_the_daily_break_is_refused(path):
    frame = synthetic()
    write(path, columns_of(frame, datetime=local(frame, "America/Chicago", "%Y-%m-%d %H:%M:%S")))
    with pytest.raises(UserError, match=r"--zone America/New_York does not put .* but America/Chicago does"):
        read_vendor(path, zone="America/New_York", stamp_side="start")


@pytest.mark.parametrize(("side", "shift"), [("start", 0), ("end", 3600)])
def test_hourly_bars(path, side, shift):
    """The starts of hours in New York look like the ends of hours in Chicago; both readings place the bars alike."""
    frame = synthetic(60)
    moved = frame.with_columns(pl.col("ts") + shift)
    write(path, columns_of(frame, datetime=local(moved, "America/New_York", "%Y-%m-%d %H:%M:%S")))
    require_same(read_vendor(path), frame)
    read = read_vendor(path, zone="America/New_York")
    assert (read.zone, read.stamp_side, read.bar_seconds) == ("America/New_York", side, 3600)
    require_same(read, frame)


def test_ends_that_the_user_knows_of(path):
    path.write_text(
        "datetime,open,high,low,close,volume\n2024-01-08 09:31:00,4,5,3,4,7\n2024-01-08 09:32:00,4,5,3,4,7\n"
    )
    read = read_vendor(path, zone="America/New_York", stamp_side="end")
    assert read.frame["ts"].to_list() == [1_704_724_200, 1_704_724_260]
    with pytest.raises(UserError, match="say it with --stamps start or --stamps end"):
        read_vendor(path, zone="America/New_York")


def test_the_hours_before_2012(path):
    """Until 2012, trading went on until 17:30."""
    utc = pl.datetime_range(pl.datetime(2008, 1, 7), pl.datetime(2008, 1, 12), "1m", eager=True)
    wall = utc.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York")
    shut = (wall.dt.hour() == 17) & (wall.dt.minute() >= 30) | (wall.dt.hour() == 16) & wall.dt.minute().is_between(
        15, 29
    )
    stamps = wall.filter(~shut).dt.strftime("%Y-%m-%d %H:%M")
    path.write_text("datetime,open,high,low,close,volume\n" + "".join(f"{stamp},4,5,3,4,7\n" for stamp in stamps))
    read = read_vendor(path)
    assert (read.zone, read.stamp_side) == ("America/New_York", "start")


def test_a_last_line_that_is_not_ended_is_left_out(path):
    content = "datetime,open,high,low,close,volume\n2024-01-08T14:31:00Z,4,5,3,4,71\n2024-01-08T14:32:00Z,4,5,3,4,7"
    path.write_text(content)
    read = read_vendor(path, stamp_side="start")
    assert read.counts == {"unended_last_line": 1}
    assert read.frame["volume"].to_list() == [71]


@pytest.mark.real_data
def test_the_export_of_interactive_brokers(real_data):
    read = read_vendor(real_data("es-30min-ib-export.csv"))
    assert read.zone == "America/New_York"
    assert (read.format, read.stamp_side, read.bar_seconds) == ("interactive-brokers", "start", 1800)
    assert (read.frame["high"] >= read.frame["open"]).all()
    assert read.frame["ts"][0] == 1_508_765_400


@pytest.mark.parametrize(
    ("limit", "what"),
    [("MOST_ROWS", "rows"), ("MOST_TEXT", "bytes of text")],
)
def test_a_parquet_file_that_would_fill_the_memory_is_refused_before_it_is_read(path, limit, what, monkeypatch):
    """Repeated values take almost no space in a Parquet file: a thousand million rows fit into six megabytes."""
    frame = synthetic()
    utc = pl.from_epoch(frame["ts"], "s").dt.replace_time_zone("UTC")
    columns = {"volume": frame["volume"], **{price: frame[price] for price in PRICES}, "timestamp": utc}
    pl.DataFrame({**columns, "symbol": "ESH4"}).write_parquet(path)
    size = frame.height if what == "rows" else 4 * frame.height
    monkeypatch.setattr(parquet, limit, size)
    assert read_vendor(path).frame.height == frame.height
    monkeypatch.setattr(parquet, limit, size - 1)
    monkeypatch.setattr(pl, "read_parquet", None)
    with pytest.raises(UserError, match=f"has {size:,} {what}; more than {size - 1:,} are not read"):
        read_vendor(path)


def test_a_parquet_file_that_is_replaced_while_it_is_read_is_refused(path, monkeypatch):
    frame = synthetic()
    rows = {"timestamp": pl.from_epoch(frame["ts"], "s"), **{name: frame[name] for name in (*PRICES, "volume")}}
    bars = pl.DataFrame(rows)
    bars.write_parquet(path)
    read_parquet = pl.read_parquet

    def read_then_replaced(*given, **options):
        read = read_parquet(*given, **options)
        bars.with_columns(pl.col("volume") + 1).write_parquet(path)
        return read

    monkeypatch.setattr(pl, "read_parquet", read_then_replaced)
    with pytest.raises(UserError, match="was changed while it was read"):
        read_vendor(path)


def test_a_text_file_that_is_replaced_while_it_is_read_is_refused(path, monkeypatch):
    frame = synthetic()
    bars = frame.with_columns(pl.from_epoch("ts", "s"))
    other = path.with_name("other")
    bars.write_csv(path)
    bars.with_columns(pl.col("volume") + 1).write_csv(other)
    read_csv = pl.read_csv

    def replaced_then_read(*given, **options):
        if other.exists():
            other.replace(path)
        return read_csv(*given, **options)

    monkeypatch.setattr(pl, "read_csv", replaced_then_read)
    with pytest.raises(UserError, match="was changed while it was read"):
        read_vendor(path)


def test_a_parquet_file_of_one_row_repeated_millions_of_times_is_refused_before_it_is_read(path, monkeypatch):
    minute = pl.repeat(1_704_724_260, 3_000_000, eager=True)
    prices = dict.fromkeys((*PRICES, "volume"), pl.lit(5.0))
    pl.DataFrame({"timestamp": pl.from_epoch(minute, "s")}).with_columns(**prices).write_parquet(path)
    monkeypatch.setattr(pl, "read_parquet", None)
    with pytest.raises(UserError, match=r"has 3,000,000 rows in [\d,]+ bytes, too few for bars"):
        read_vendor(path)


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["A" * 10_000])], ids=str)
def test_a_parquet_file_with_a_symbol_longer_than_any_is_refused_before_it_is_read(kind, path, monkeypatch):
    minutes = pl.from_epoch(pl.arange(1_704_724_260, 1_704_724_360, eager=True), "s")
    prices = dict.fromkeys((*PRICES, "volume"), pl.lit(5.0))
    pl.DataFrame({"timestamp": minutes}).with_columns(symbol=pl.lit("A" * 10_000).cast(kind), **prices).write_parquet(
        path
    )
    monkeypatch.setattr(pl, "read_parquet", None)
    with pytest.raises(
        UserError, match="has 1,000,000 bytes of text; more than 100,000 are not read: no symbol or stamp"
    ):
        read_vendor(path)


def test_lean_with_more_rows_than_fit_into_memory_is_refused_before_all_are_read(path, monkeypatch):
    """A row that is repeated takes a byte in a zip file, and a hundred in memory."""
    frame = synthetic()
    read = read_vendor(write_lean(path, frame)).frame.height
    monkeypatch.setattr("vpoc.data.readers.lean.MOST_ROWS", read - 1)
    with pytest.raises(UserError, match=f"has more rows than the {read - 1:,} that are read"):
        read_vendor(path)


def test_lean_with_more_rows_than_a_day_has_minutes_is_refused(path):
    row = "60000,5000,5001,4999,5000,1\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("20240108_es_minute_trade_202403.csv", 1441 * row)
    with pytest.raises(UserError, match="has 1,441 rows, and a day has 1,440 minutes"):
        read_vendor(path)


def test_bytes_of_text_are_counted_beyond_32_bits(path, monkeypatch):
    columns = ("timestamp", *PRICES, "volume")
    pl.DataFrame(dict.fromkeys(columns, "x")).write_parquet(path)
    # Writing so much text into a file would take seconds.
    large = pl.LazyFrame({name: pl.repeat("x" * 10_000_000, 500, eager=True) for name in columns})
    monkeypatch.setattr(pl, "scan_parquet", lambda *_, **_options: large)
    with pytest.raises(UserError, match="has 30,000,000,000 bytes of text"):
        read_vendor(path)


@pytest.mark.parametrize("count", [2**62, -(2**62)])
def test_a_stamp_of_parquet_that_no_date_can_be_is_reported(path, count):
    stamps = pl.Series([count]).cast(pl.Datetime("ms"))
    pl.DataFrame({"timestamp": stamps, **dict.fromkeys((*PRICES, "volume"), 1)}).write_parquet(path)
    with pytest.raises(UserError, match=r"row 1: the stamp is .{1,40}, not in the years"):
        read_vendor(path)


@pytest.mark.parametrize("value", [[[1.0]], [b"\xff"], ["none"]], ids=["list", "bytes", "text"])
@pytest.mark.parametrize("name", ["open", "symbol", "vix"])
def test_a_parquet_column_of_another_type_is_reported(path, name, value):
    frame = synthetic()
    utc = pl.from_epoch(frame["ts"], "s").dt.replace_time_zone("UTC")
    columns = {"volume": frame["volume"], **{price: frame[price] for price in PRICES}, "timestamp": utc}
    pl.DataFrame({**columns, name: value * frame.height}).write_parquet(path)
    if name == "symbol" and value == ["none"]:
        assert read_vendor(path).frame["symbol"][0] == "none"
    else:
        with pytest.raises(UserError, match=f"{name} (is of type|is not a finite number)"):
            read_vendor(path)
