import csv
import io
import shutil

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.data.scid import scid_bytes
from vpoc.cli import run
from vpoc.data import merged_csv
from vpoc.data.checks import copying
from vpoc.data.checks.fix import fix
from vpoc.data.checks.quality import inspect
from vpoc.data.load import load_bars
from vpoc.data.readers import read_vendor
from vpoc.errors import UserError

HEADER = "ts,open,high,low,close,volume,vix\n"
CLAIMED = ("cannot be read", "not above zero", "before that of", "same stamp", "outside low..high")


def line(minute, *, day=2, o="4000.00", h="4001.00", low="3999.00", c="4000.25", volume="10", vix="15.00"):
    return f"2024-01-{day:02}T{14 + minute // 60:02}:{minute % 60:02}:00Z,{o},{h},{low},{c},{volume},{vix}\n"


GOOD = [line(minute) for minute in range(300)]


@pytest.fixture
def fixed(tmp_path):
    """Return a function that fixes a text: result, the copy's lines, changes as (line, action, reason, was, now)."""

    def do(text, name="m.csv", **reading):
        path, output, changes = tmp_path / name, tmp_path / "out" / name, tmp_path / "out" / "changes.csv"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        done = fix(path, inspect(path, **reading), output, changes, **reading)
        rows = list(csv.reader(io.StringIO(changes.read_text())))
        assert rows[0] == ["line", "action", "reason", "was", "now"]
        logged = [(int(number), *rest) for number, *rest in rows[1:]]
        assert sum(done.reasons.values()) == len(logged) == done.dropped + done.changed + done.moved
        return done, output.read_bytes().decode("utf-8", "replace").splitlines(keepends=True), logged

    return do


def test_a_good_file_is_copied_as_it_is(fixed):
    done, lines, logged = fixed(HEADER + "".join(GOOD) + "\n\n")
    assert lines == [HEADER, *GOOD, "\n", "\n"]
    assert (done.dropped, logged) == (0, [])


ONE_ROW = {
    "outside": (line(50, low="4000.75"), "open or close is outside low..high"),
    "zero": (line(50, low="0"), "a price is not above zero"),
    "text": (line(50, c="n/a"), "close is 'n/a', not a number"),
    "cells": ("a,b\n", "2 cells, but the header has 7"),
    "blank": ("\n", "the line is blank"),
    "negative": (line(50, volume="-1"), "volume -1 is negative"),
    "repeat": (GOOD[49], "repeats line 51"),
    "off grid": (line(50, o="4000.10"), "a price is not a multiple of 0.25"),
}


@pytest.mark.parametrize("case", ONE_ROW)
def test_a_row_that_is_no_bar_is_dropped(fixed, case):
    bad, reason = ONE_ROW[case]
    done, lines, logged = fixed(HEADER + "".join([*GOOD[:50], bad, *GOOD[51:]]))
    assert logged == [(52, "dropped", reason, bad.rstrip("\n"), "")]
    assert lines == [HEADER, *GOOD[:50], *GOOD[51:]]
    assert (done.dropped, done.changed, done.moved) == (1, 0, 0)


def test_all_of_rows_that_differ_are_dropped(fixed):
    rows = [*GOOD[:50], line(50, c="4000.50"), line(50), line(50), *GOOD[51:]]
    done, lines, logged = fixed(HEADER + "".join(rows))
    assert [(number, reason) for number, _, reason, _, _ in logged] == [
        (52, "the same stamp as line 54 with other values (3 rows in all)"),
        (53, "the same stamp as line 52 with other values (3 rows in all)"),
        (54, "the same stamp as line 52 with other values (3 rows in all)"),
    ]
    assert lines == [HEADER, *GOOD[:50], *GOOD[51:]]
    assert done.reasons == {"the same stamp as another line with other values": 3}


def test_a_row_that_is_no_bar_is_no_rival(fixed):
    _, lines, logged = fixed(HEADER + "".join([*GOOD[:50], line(50, c="9000.00"), *GOOD[50:]]))
    assert [row[:3] for row in logged] == [(52, "dropped", "open or close is outside low..high")]
    assert lines == [HEADER, *GOOD]


def test_a_vix_that_is_none_is_emptied(fixed):
    done, lines, logged = fixed(HEADER + "".join([*GOOD[:50], line(50, vix="0"), *GOOD[51:]]))
    assert logged == [(52, "changed", "vix is not above zero", line(50, vix="0")[:-1], line(50, vix="")[:-1])]
    assert lines[51] == line(50, vix="")
    assert (done.dropped, done.changed, done.moved) == (0, 1, 0)


def test_a_quoted_row_stays_quoted_where_it_must(fixed):
    header = HEADER.replace("vix", "vix,symbol")
    rows = [row[:-1] + ',"ES,H4"\r\n' for row in [*GOOD[:50], line(50, vix="-1")]]
    _, lines, _ = fixed(header + "".join(rows))
    assert lines[51] == line(50, vix="")[:-1] + ',"ES,H4"\r\n'


def test_too_many_prices_off_the_grid_stay(fixed):
    rows = [line(minute, o="4000.10") if minute % 50 == 0 else line(minute) for minute in range(300)]
    _, lines, logged = fixed(HEADER + "".join(rows))
    assert (lines, logged) == ([HEADER, *rows], [])


def test_the_fewest_rows_are_moved(fixed):
    rows = [*GOOD[:20], GOOD[200], *GOOD[20:200], *GOOD[201:]]
    rows[250], rows[251] = rows[251], rows[250]
    done, lines, logged = fixed(HEADER + "".join(rows))
    assert lines == [HEADER, *GOOD]
    assert [row[:3] for row in logged[:1]] == [(22, "moved", "out of order")]
    assert (len(logged), done.moved) == (2, 2)


def test_rows_out_of_order_meet_their_duplicates(fixed):
    rows = [*GOOD[:100], GOOD[7], *GOOD[100:], line(150, c="4000.50"), line(20, vix="0")]
    _, lines, logged = fixed(HEADER + "".join(rows))
    assert [(number, action) for number, action, *_ in logged] == [
        (22, "dropped"),
        (102, "dropped"),
        (153, "dropped"),
        (303, "dropped"),
        (304, "dropped"),
    ]
    assert lines == [HEADER, *(row for row in GOOD if row not in (GOOD[20], GOOD[150]))]


def test_a_last_line_that_is_not_ended_is_dropped(fixed):
    for text in (GOOD[-1][:-1], "2024-01-0"):
        _, lines, logged = fixed(HEADER + "".join(GOOD[:-1]) + text)
        assert logged == [(301, "dropped", merged_csv.UNENDED, text, "")]
        assert lines == [HEADER, *GOOD[:-1]]


def test_a_line_that_is_no_text(fixed):
    _, lines, logged = fixed((HEADER + "".join(GOOD)).encode() + b"\xe9\xff\0\n")
    assert [row[:3] for row in logged] == [(302, "dropped", "the line is not UTF-8 text")]
    assert lines == [HEADER, *GOOD]


def test_single_trades_may_be_alike(fixed):
    trades = [line(minute // 3, h="4000.00", low="4000.00", c="4000.00") for minute in range(90)]
    _, lines, logged = fixed(HEADER + "".join(trades))
    assert (lines, logged) == ([HEADER, *trades], [])


def test_parts_of_any_size_make_the_same_copy(fixed, monkeypatch):
    rows = list(GOOD)
    for place, (bad, _) in enumerate(ONE_ROW.values()):
        rows[20 * place + 10] = bad
    text = HEADER + "".join(rows) + "\n\n" + GOOD[0][:-3]
    expected = fixed(text)
    monkeypatch.setattr(copying, "COPY_BYTES", 100)
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 700)
    assert fixed(text) == expected


MISHAPS = st.sampled_from(
    [
        lambda row: "",
        lambda row: row + row,
        lambda row: row + row.replace(",10,", ",11,"),
        lambda row: row.replace("4001.00", "3000.00"),
        lambda row: row.replace("3999.00", "-3999.00"),
        lambda row: row.replace("4000.25", "4000.26"),
        lambda row: row.replace(",10,", ",0,"),
        lambda row: row.replace(",10,", ",ten,"),
        lambda row: row.replace("15.00", "0"),
        lambda row: row.replace("15.00", ""),
        lambda row: row.replace("2024-01-02T14", "2024-01-03T14"),
        lambda row: row.replace("2024", "1999"),
        lambda row: row.replace("2024", "24"),
        lambda row: row[: len(row) // 2],
        lambda row: "\n" + row,
        lambda row: row.replace("\n", "\r\n"),
        lambda row: '"' + row,
    ]
)


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples * 3 // 4)
@given(st.dictionaries(st.integers(0, 299), MISHAPS, max_size=25), st.booleans())
def test_what_is_fixed_is_right_and_stays_so(tmp_path_factory, mishaps, ended):
    folder = tmp_path_factory.mktemp("fix")
    path, copy, again = folder / "m.csv", folder / "copy.csv", folder / "again.csv"
    text = HEADER + "".join(mishaps.get(row, str)(good) for row, good in enumerate(GOOD))
    path.write_bytes((text if ended else text + GOOD[0][:30]).encode())
    quality = inspect(path)
    done = fix(path, quality, copy, folder / "changes.csv")
    left = inspect(copy)
    assert not [error for error in left.errors if any(claim in error for claim in CLAIMED)]
    assert left.facts["rows"] == quality.facts["rows"] - done.dropped
    assert left.facts["exact_duplicates"] == 0
    # Fixing invents nothing: each line of the copy is a line of the file, except where a VIX was emptied.
    lines = set(path.read_bytes().splitlines(keepends=True))
    lines |= {row.replace(b",0\n", b",\n").replace(b",0\r", b",\r") for row in lines}
    assert set(copy.read_bytes().splitlines(keepends=True)) <= lines
    assert left.facts["off_grid"] == 0 or left.facts["off_grid"] > 0.01 * left.facts["rows"]
    if not left.facts["off_grid"]:
        load_bars(copy)
    twice = fix(copy, left, again, folder / "again.changes.csv")
    assert (twice.dropped, twice.changed, twice.moved) == (0, 0, 0)
    assert again.read_bytes() == copy.read_bytes()
    shutil.rmtree(folder)


VENDOR = "Time;Close;Open;High;Low;Volume;Note\n"
ROWS = [
    f"2024-01-02T{14 + minute // 60:02}:{minute % 60:02}:00-05:00;4000.25;4000;4001;3999;7;n{minute}\n"
    for minute in range(120)
]


def test_a_vendors_file_keeps_its_columns(fixed):
    bad = ROWS[30].replace("4001", "3000")
    other = ROWS[60].replace(";7;", ";8;")
    text = VENDOR + "".join([*ROWS[:30], bad, *ROWS[31:], other, ROWS[5]]) + ROWS[7][:20]
    reading = {"stamp_side": "start"}
    _, lines, logged = fixed(text, **reading)
    assert [(number, reason) for number, _, reason, _, _ in logged] == [
        (32, "open or close is outside low..high"),
        (62, "the same stamp as line 122 with other values (2 rows in all)"),
        (122, "the same stamp as line 62 with other values (2 rows in all)"),
        (123, "repeats line 7"),
        (124, merged_csv.UNENDED),
    ]
    assert lines == [VENDOR, *(row for row in ROWS if row not in (ROWS[30], ROWS[60]))]


@pytest.mark.parametrize("kind", ["parquet", "scid"])
def test_rows_that_are_no_lines_become_a_csv(fixed, tmp_path, kind):
    stamps = pl.datetime_range(
        pl.datetime(2024, 1, 2, 14), pl.datetime(2024, 1, 2, 15, 59), "1m", eager=True, time_zone="UTC"
    )
    bars = {"open": 4000.0, "high": 4001.0, "low": 3999.0, "close": 4000.25, "volume": 7, "symbol": "ESH4"}
    frame = pl.DataFrame({"ts_event": stamps}).with_columns(**{name: pl.lit(value) for name, value in bars.items()})
    frame = frame.with_columns(high=pl.when(pl.int_range(pl.len()) == 30).then(3000.0).otherwise("high"))
    name = f"m.{kind}"
    if kind == "scid":
        (tmp_path / name).write_bytes(scid_bytes(stamps.dt.epoch("s"), frame, 9, frame["volume"]))
    else:
        frame.write_parquet(tmp_path / name)
    _, lines, logged = fixed(None, name=name, stamp_side="start")
    shown = "2024-01-02T14:30:00Z,4000.0,3000.0,3999.0,4000.25,7"
    symbol = {"scid": "", "parquet": ",ESH4"}[kind]
    assert logged == [(31, "dropped", "open or close is outside low..high", f"{shown}{symbol}", "")]
    assert lines[0] == f"ts,open,high,low,close,volume{',symbol' if symbol else ''}\n"
    before = read_vendor(tmp_path / name, stamp_side="start").frame.drop("line")
    after = read_vendor(tmp_path / "out" / name, stamp_side="start").frame.drop("line")
    assert after.equals(before.filter(pl.col("high") > 3000))


def test_outputs_that_would_destroy_something(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(HEADER + "".join(GOOD))
    quality = inspect(path)
    for output, changes in ((path, tmp_path / "c"), (tmp_path / "o", path), (tmp_path / "o", tmp_path / "." / "o")):
        with pytest.raises(UserError):
            fix(path, quality, output, changes)
    assert path.read_text() == HEADER + "".join(GOOD)
    assert [found.name for found in tmp_path.iterdir()] == ["m.csv"]


def test_the_command(merged, tmp_path, capsys):
    lines = merged.read_text().splitlines(keepends=True)
    lines[500] = lines[500].replace(",", ",x", 1)
    path, copy = tmp_path / "m.csv", tmp_path / "copy.csv"
    path.write_text("".join(lines))
    assert run(["check", str(path), "--lookback", "20"]) == 1
    assert run(["check", str(path), "--lookback", "20", "--fix", str(copy)]) == 0
    captured = capsys.readouterr()
    assert f"error: {path}, line 501: open is 'x" in captured.out
    assert f"{copy}: 1 rows dropped, 0 changed, 0 moved; {tmp_path / 'copy.changes.csv'} lists them" in captured.out
    assert (tmp_path / "copy.changes.csv").read_text().startswith("line,action,reason,was,now\n501,dropped,")
    assert copy.read_text() == "".join(lines[:500] + lines[501:])
    assert run(["check", str(path), "--lookback", "20", "--fix", str(copy)]) == 0
    assert run(["check", str(path), "--changes", str(copy)]) == 2
    other = copy.with_name("other.csv")
    other.write_text("mine")
    assert run(["check", str(path), "--fix", str(other)]) == 2
    assert (other.read_text(), "give another OUTPUT to --fix" in capsys.readouterr().err) == ("mine", True)
    # The exit status says whether problems are left that --fix cannot fix.
    path.write_text("".join(lines[:600]))
    assert (
        run(["check", str(path), "--lookback", "20", "--fix", str(copy), "--changes", str(tmp_path / "list.csv")]) == 1
    )
    assert "complete sessions are needed" in capsys.readouterr().err
    assert (tmp_path / "list.csv").exists()
