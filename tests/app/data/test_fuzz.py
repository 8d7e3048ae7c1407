"""Fuzz tests: a damaged file gives an error of one line or the right rows, never a traceback or wrong rows."""

import io
import os
import struct
import zipfile

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.app.data.scid import scid_bytes
from vpoc.data.merge import merge
from vpoc.data.readers import read_vendor
from vpoc.data.readers.vix import read_vix
from vpoc.errors import UserError

FIRST = 1_704_724_200
"""2024-01-08 09:30 New York."""
COUNT = 20
TICKS = 19_000 + np.arange(COUNT) % 7
ROWS = [
    (FIRST + 60 * row, tick / 4, tick / 4 + 0.5, tick / 4 - 0.5, tick / 4 + 0.25, 100 + row)
    for row, tick in enumerate(TICKS.tolist())
]
FRAME = pl.DataFrame(ROWS, schema=["ts", "open", "high", "low", "close", "volume"], orient="row")
UTC = pl.from_epoch(FRAME["ts"], "s").dt.replace_time_zone("UTC")
NEW_YORK = UTC.dt.convert_time_zone("America/New_York")
# Steps between the places at which files are truncated: in their first lines and in their last ones, in bytes.
STEP, LAST = (1, 1) if os.environ.get("LONG") else (16, 5)
SAID = {"zone": "America/New_York", "stamp_side": "start"}


def csv(stamps, *, header="datetime,open,high,low,close,volume\n", extra=""):
    values = FRAME.rows()
    return (
        header
        + "".join(f"{s},{o},{h},{lo},{c},{v}{extra}\n" for s, (_, o, h, lo, c, v) in zip(stamps, values, strict=True))
    ).encode()


def lean():
    buffer = io.BytesIO()
    lines = "".join(f"{(t - 1_704_672_000) * 1000},{o},{h},{lo},{c},{v}\n" for t, o, h, lo, c, v in ROWS)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("20240108_es_minute_trade_202403.csv", lines)
    return buffer.getvalue()


def parquet():
    buffer = io.BytesIO()
    FRAME.with_columns(ts=UTC.dt.replace_time_zone(None)).write_parquet(buffer)
    return buffer.getvalue()


TEXTS = {
    "csv": csv(NEW_YORK.dt.strftime("%Y-%m-%d %H:%M:%S")),
    "csv-of-utc": csv(UTC.dt.strftime("%Y-%m-%dT%H:%M:%SZ")),
    "interactive-brokers": csv(NEW_YORK.dt.strftime("%Y%m%d  %H:%M:%S")),
    "databento": csv(
        (FRAME["ts"] * 10**9).to_list(), header="ts_event,open,high,low,close,volume,symbol\n", extra=",ESH4"
    ),
    "tradingview": csv(FRAME["ts"].to_list(), header="time,open,high,low,close,Volume,MA\n", extra=",7"),
    "merged": csv(UTC.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), header="ts,open,high,low,close,volume,vix\n", extra=",13.20"),
    "kibot": csv(NEW_YORK.dt.strftime("%m/%d/%Y,%H:%M"), header=""),
    "ninjatrader": csv(NEW_YORK.dt.strftime("%Y%m%d %H%M%S"), header="").replace(b",", b";"),
}
SCID = scid_bytes(FRAME["ts"], FRAME, 9, FRAME["volume"])
BINARIES = {"lean": lean(), "sierra-scid": SCID, "parquet": parquet()}
FILES = {**TEXTS, **BINARIES}
ZONE_OF = {"parquet": "UTC"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "file"


def said(name):
    return {**SAID, "zone": ZONE_OF.get(name, SAID["zone"])}


def read(path, content, name="csv"):
    """Return the rows that are read, or None after an error that is one line and names the file."""
    path.write_bytes(content)
    try:
        frame = read_vendor(path, **said(name)).frame
    except UserError as error:
        told = str(error)
    else:
        return frame.select("ts", "open", "high", "low", "close", "volume").rows()
    assert "\n" not in told
    assert str(path) in told
    return None


@pytest.mark.parametrize("name", FILES)
def test_whole_files_are_read(path, name):
    assert read(path, FILES[name], name) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_truncated_files(path, name):
    """A truncated file gives an error, or a prefix of the rows."""
    content = FILES[name]
    for end in sorted(
        {
            *range(0, len(content), 11 if STEP == 1 else 97),
            *range(0, 150, STEP),
            *range(len(content) - 70, len(content), LAST),
            # Cut off: the last newline, then digits of the last number.
            *range(len(content) - 4, len(content)),
        }
    ):
        rows = read(path, content[:end], name)
        assert rows is None or rows == ROWS[: len(rows)], end
        assert rows is None or len(rows) >= (end - 120) // 60, end


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(data=st.data())
def test_a_byte_that_is_no_text(path, name, data):
    """A NUL byte or a byte of another encoding is inserted or replaces a byte."""
    content = FILES[name]
    place = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.sampled_from([b"\0", b"\xff", b"\xe9", b"\x80"]))
    over = data.draw(st.booleans())
    rows = read(path, content[:place] + byte + content[place + over :], name)
    if name in TEXTS:
        assert rows is None
    elif name == "lean":
        # The checksums of a zip file reveal a change of its content.
        assert rows is None or rows == ROWS


@pytest.mark.slow
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(name=st.sampled_from(sorted(FILES)), data=st.data())
def test_any_damage_is_reported_in_one_line(path, name, data):
    content = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    read(path, bytes(content), name)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(
    content=st.one_of(
        st.binary(max_size=300), st.text(alphabet='0123456789-:;,."\t\r\n TZabc', max_size=300).map(str.encode)
    )
)
def test_any_bytes(path, content):
    assert read(path, content) is None


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(row=st.integers(0, COUNT - 1), data=st.data())
def test_cells_that_are_lost_or_doubled(path, row, data):
    """Without this error, a row that lacks a cell would take its volume from the next column."""
    name = data.draw(st.sampled_from(sorted(TEXTS)))
    lines = TEXTS[name].decode().splitlines(keepends=True)
    row += len(lines) - COUNT
    mark = ";" if name == "ninjatrader" else ","
    cells = lines[row][:-1].split(mark)
    place = data.draw(st.integers(0, len(cells) - 1))
    cells[place : place + 1] = data.draw(st.sampled_from([[], [cells[place]] * 2]))
    lines[row] = mark.join(cells) + "\n"
    assert read(path, "".join(lines).encode(), name) is None


def broken(old, new):
    return TEXTS["csv"].replace(old.encode(), new.encode(), 1)


LINE_3 = "2024-01-08 09:31:00,4750.25,4750.75,4749.75,4750.5,101"
CASES = {
    "empty": (b"", "the file is empty"),
    "blank": (b"\n \n\n", "the file is empty"),
    "header only": (b"datetime,open,high,low,close,volume\n", "no rows"),
    "header not ended": (b"datetime,open,high,low,close,volume", "no rows"),
    "sep of Excel": (b"sep=,\r\nts,open\r\n", "line 1: it is for Excel, .*sed -i 1d"),
    "quoted sep": (b'\n"sep=;"\nts;open\n', "line 2: it is for Excel, .*sed -i 2d"),
    "one column": (b"price\n1\n2\n", "line 1: one cell only"),
    "UTF-16": (TEXTS["csv"].decode().encode("utf-16"), "UTF-16"),
    "UTF-16 without a mark": (TEXTS["csv"].decode().encode("utf-16-le"), "not a text file"),
    "latin-1": (broken("4750.75", "4750.75\xa0").decode().encode("latin-1"), "line 3: not UTF-8"),
    "NUL late": (TEXTS["csv"] * 60 + b"\0" * 20, "line 1261: a NUL byte"),
    "old line ends": (TEXTS["csv"].replace(b"\n", b"\r"), "carriage return"),
    "gzip": (b"\x1f\x8b\x08\0" + b"x" * 40, "compressed"),
    "zstandard": (b"\x28\xb5\x2f\xfd" + b"x" * 40, "compressed"),
    "huge price": (broken("4750.75", "1e308"), "line 3: high is beyond any price"),
    "infinite price": (broken("4750.75", "1e400"), "line 3: high is '1e400', not a number"),
    "NaN": (broken("4750.75", "nan"), "line 3: high is 'nan', not a number"),
    "text": (broken("4750.75", "n/a"), "line 3: high is 'n/a', not a number"),
    "empty price": (broken("4750.75", ""), "line 3: high is an empty cell"),
    "two decimal commas": (broken("4750.75", '"4750,7,5"'), "line 3: high is '4750.7,5', not a number"),
    "negative volume": (broken(",101", ",-101"), "line 3: volume -101 is negative"),
    "fractional volume": (broken(",101", ",10.5"), "line 3: volume 10.5 is not a whole number"),
    "volume of 10^15": (broken(",101", ",1000000000000000"), "line 3: volume .* is more than any market trades"),
    "1900": (
        broken("2024-01-08 09:31", "1900-01-08 09:31"),
        "line 3: datetime is '1900-.*not in the years 1980 to 2100",
    ),
    "2101": (
        broken("2024-01-08 09:31", "2101-01-08 09:31"),
        "line 3: datetime is '2101-.*not in the years 1980 to 2100",
    ),
    "epoch of 2101": (
        TEXTS["tradingview"].replace(b"1704724260", b"4133980800"),
        "line 3: time is '4133980800', not in",
    ),
    "31 February": (
        broken("2024-01-08 09:31", "2024-02-31 09:31"),
        "line 3: datetime is .* not written like the first",
    ),
    "another form of date": (
        broken("2024-01-08 09:31:00", "01/08/2024 09:31"),
        "line 3: datetime is .* not written like",
    ),
    "empty stamp": (broken("2024-01-08 09:31:00", ""), "line 3: datetime is .*not written like"),
    "short row": (broken(",4750.5,101", ",4750.5"), "line 3: 5 cells, but the first line has 6"),
    "long row": (broken(",101", ",101,7"), "line 3: 7 cells"),
    "short and long row": (broken(",101", "").replace(b",104", b",104,7"), "line 3: 5 cells"),
    "blank line within": (broken("\n" + LINE_3, "\n\n" + LINE_3), "line 3: 1 cells"),
    "open quote": (broken("4750.75", '"4750.75'), "line 3: a quote that is not closed"),
    "quote over lines": (broken(",101\n2024", ',"101\n2024"'), "line 3: a quote that is not closed"),
    "a column twice": (broken("high", "open"), "a column name appears twice in the header .open."),
    "no volume": (broken("volume", "count"), "missing column.s. volume; there are: datetime.*goes to --vix"),
    "a file of the VIX": (b"DATE,CLOSE\n2024-01-02,13.20\n", "missing column.s. open, .*goes to --vix"),
    "a file of the VIX by FRED": (
        b"observation_date,VIXCLS\n2024-01-02,13.20\n",
        "missing column.s. open, .*goes to --vix",
    ),
    "spring gap": (broken("2024-01-08 09:31:00", "2024-03-10 02:30:00"), "line 3: .* does not exist, or exists twice"),
    "zip of something else": (
        lean().replace(b"20240108_es_minute_trade_202403.csv", b"notes_about_the_minutes_of_today.md"),
        "is not the minutes",
    ),
    "zip cut": (lean()[:-30], "cut short or damaged"),
    "scid header cut": (SCID[:40], "40 bytes has no whole header"),
    "scid without records": (SCID[:56], "no records"),
    "scid of other records": (SCID[:8] + struct.pack("<I", 48) + SCID[12:], "the header says 56 and 48 bytes"),
    "scid of 1900": (SCID[:56] + struct.pack("<q", 10**15) + SCID[64:], "record 1: the stamp is, not in the years"),
    "scid of infinite price": (SCID[:64] + struct.pack("<f", np.inf) + SCID[68:], "record 1: open is inf"),
    "parquet cut": (parquet()[:-50], "cut short or damaged"),
    "parquet that is none": (b"PAR1" + b"x" * 100, "cut short or damaged"),
}


@pytest.mark.parametrize("case", CASES)
def test_named_cases(tmp_path, case):
    content, expected = CASES[case]
    bars, vix = tmp_path / "bars", tmp_path / "vix"
    bars.write_bytes(content)
    vix.write_text("DATE,CLOSE\n2024-01-02,13.20\n")
    with pytest.raises(UserError, match=expected) as caught:
        merge(bars, vix, zone="America/New_York", stamp_side="start")
    assert "\n" not in str(caught.value)
    assert str(bars) in str(caught.value)


SAME = {
    "byte-order mark": b"\xef\xbb\xbf" + TEXTS["csv"],
    "CRLF": TEXTS["csv"].replace(b"\n", b"\r\n"),
    "quoted": b"\n".join(
        b",".join(b'"' + c + b'"' for c in line.split(b",")) for line in TEXTS["csv"].split(b"\n")[:-1]
    )
    + b"\n",
    "quoted cell with a comma": b"\n".join(
        line + (b',"a, b"' if row else b',"x, y"') for row, line in enumerate(TEXTS["csv"].split(b"\n")[:-1])
    )
    + b"\n",
    "blanks around": TEXTS["csv"].replace(b",", b" , "),
    "blank lines at the end": TEXTS["csv"] + b"\n  \n\r\n",
    "blank lines at the start": b"\n\n" + TEXTS["csv"],
    "upper case": TEXTS["csv"].replace(b"datetime,open,high,low,close,volume", b"DateTime,OPEN,High,LOW,Close,VOL"),
    "exponents": TEXTS["csv"].replace(b"4750.75", b"4.75075e3"),
    "byte-order mark without a header": b"\xef\xbb\xbf" + TEXTS["kibot"],
    "tabs": TEXTS["csv"].replace(b",", b"\t"),
    "semicolons": TEXTS["csv"].replace(b",", b";"),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_written_otherwise(path, case):
    assert read(path, SAME[case]) == ROWS


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_damaged_vix(path, data):
    content = bytearray(b"DATE,OPEN,HIGH,LOW,CLOSE\n2024-01-02,1,1,1,13.20\n2024-01-03,1,1,1,14.04\n")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    path.write_bytes(bytes(content))
    try:
        vix = read_vix(path)
    except UserError as error:
        told = str(error)
    else:
        told = ""
        assert (vix.close > 0).all()
        assert (np.diff(vix.published) > 0).all()
    assert "\n" not in told
