import json
import re
from pathlib import Path

import numpy as np
import pytest

from vpoc.cli import run
from vpoc.data import merged_csv
from vpoc.data.checks.quality import inspect
from vpoc.data.synth import BARS, synthetic_csv
from vpoc.errors import UserError

DOCS = Path(__file__).parents[4] / "docs" / "data.md"
HEADER = "ts,open,high,low,close,volume,vix\n"


@pytest.fixture(scope="module")
def minutes(tmp_path_factory):
    path = tmp_path_factory.mktemp("minutes") / "m.csv"
    path.write_bytes(synthetic_csv(26, 7))
    return path


@pytest.fixture
def changed(minutes, tmp_path):
    """Return a function that changes some cells or lines of `minutes`: {row: {column: text}} or {row: line}."""

    def write(changes, name="changed.csv"):
        lines = minutes.read_text().splitlines(keepends=True)
        names = lines[0].strip().split(",")
        for row, change in changes.items():
            if isinstance(change, str):
                lines[row + 1] = change
                continue
            cells_of_row = dict(zip(names, lines[row + 1].strip().split(","), strict=True)) | change
            lines[row + 1] = ",".join(cells_of_row.values()) + "\n"
        path = tmp_path / name
        path.write_text("".join(lines))
        return path

    return write


def facts_of(path, *names, **options):
    facts = inspect(path, **options).facts
    return [facts[name] for name in names]


def at(session, clock):
    """Return the row of a New York time of a session."""
    hour, minute = map(int, clock.split(":"))
    return session * BARS + ((hour - 18) % 24) * 60 + minute


def test_the_longest_lookback_leaves_enough_sessions_after_a_gap_too(minutes, tmp_path):
    lines = minutes.read_text().splitlines(keepends=True)
    path = tmp_path / "gap.csv"
    path.write_text("".join([*lines[: 1 + 24 * BARS], *lines[1 + 25 * BARS :]]))
    (longest,) = facts_of(path, "longest_lookback")
    assert longest == 21
    few = [any("sessions" in line for line in inspect(path, lookback=longest + more).errors) for more in (0, 1)]
    assert few == [False, True]


def test_a_clean_file_gives_neither_errors_nor_warnings(minutes):
    quality = inspect(minutes)
    assert (quality.errors, inspect(minutes).warnings) == ([], [])
    assert quality.facts == quality.facts | {
        "format": "merged",
        "zone": "UTC",
        "stamp_side": "start",
        "rows": 26 * BARS,
        "first": "2018-01-01T23:00:00Z",
        "last": "2018-02-07T21:59:00Z",
        "bar_seconds": 60,
        "sessions": 26,
        "complete_rth_sessions": 26,
        "longest_lookback": 23,
        "null_vix": 930,
        "missing_rth_by_session": [],
        "missing_sessions": [],
        "half_days": [],
        "rolls": [],
    }


def test_every_key_is_documented(minutes, capsys, tmp_path):
    run(["check", str(minutes), "--json", "--fix", str(tmp_path / "f.csv")])
    document = json.loads(capsys.readouterr().out)
    table = DOCS.read_text().partition("| keys | meaning |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`([a-z_]+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    assert {*document["fix"]} == {*rows.pop()} - {"fix"}
    told = [key for row in rows for key in row]
    assert len(told) == len({*told})
    assert {*told, "fix"} == {*document}


def test_missing_bars_are_reported_by_session(changed):
    gone = {at(3, "10:00") + i: "" for i in range(30)} | {at(5, "12:00"): "", at(7, "03:00"): ""}
    path = changed(gone)
    assert facts_of(path, "missing_rth_bars", "complete_rth_sessions", "missing_rth_by_session") == [
        31,
        25,
        [
            {"trade_date": "2018-01-05", "expected": 390, "found": 360, "complete": False},
            {"trade_date": "2018-01-09", "expected": 390, "found": 389, "complete": True},
        ],
    ]
    assert "2 session(s) miss bars of the regular hours; 1 of them miss more than 5 %" in inspect(path).warnings[0]


def test_sessions_of_longer_bars_are_named_as_the_reason_for_missing_ones(changed):
    gone = {session * BARS + i: "" for session in (3, 4) for i in range(BARS) if i % 5}
    (told,) = inspect(changed(gone)).warnings
    assert told.endswith("leaves them out; 2 of them have one of every 5 bars: join only files of one bar length")


def test_missing_sessions_are_reported(changed):
    path = changed(dict.fromkeys(range(4 * BARS, 6 * BARS), ""))
    assert facts_of(path, "missing_sessions", "sessions") == [["2018-01-08", "2018-01-09"], 24]
    assert inspect(path).warnings == ["2 session(s) of the calendar are not there; the first is 2018-01-08"]


def test_a_session_that_continues_misses_nothing(changed):
    for clock in ("11:30", "03:00"):
        path = changed(dict.fromkeys(range(at(25, clock), 26 * BARS), ""))
        assert facts_of(path, "missing_rth_bars", "missing_rth_by_session") == [0, []]


@pytest.mark.slow
def test_half_days_and_calendar_rolls(summer):
    half_days, rolls = facts_of(summer, "half_days", "rolls")
    assert half_days == ["2018-07-03"]
    assert [(roll["trade_date"], roll["calendar"], roll["symbol_changes"]) for roll in rolls] == [
        ("2018-06-11", True, False)
    ]


def test_a_roll_is_where_the_symbol_changes(minutes, tmp_path):
    header, *lines = minutes.read_text().splitlines()
    cut = 12 * BARS
    path = tmp_path / "rolled.csv"
    lines = [f"{line},{'ESH8' if row < cut else 'ESM8'}" for row, line in enumerate(lines)]
    path.write_text("\n".join([f"{header},symbol", *lines]) + "\n")
    opened, closed = float(lines[cut].split(",")[1]), float(lines[cut - 1].split(",")[4])
    symbols, rolls = facts_of(path, "symbols", "rolls")
    assert symbols == ["ESH8", "ESM8"]
    assert rolls == [
        {
            "trade_date": "2018-01-19",
            "symbol_changes": True,
            "calendar": False,
            "from": "ESH8",
            "to": "ESM8",
            "jump_points": opened - closed,
        }
    ]


def test_a_symbol_that_changes_in_regular_hours_is_reported(minutes, tmp_path):
    header, *lines = minutes.read_text().splitlines()
    path = tmp_path / "rolled.csv"
    told = (
        "in 1 session(s) the contract changes in regular hours, and training leaves them out; the first is 2018-01-18"
    )
    for clock, found in (("15:30", [told]), ("14:29", [])):
        cut = next(row for row, line in enumerate(lines) if line.startswith(f"2018-01-18T{clock}"))
        named = [f"{line},{'ESH8' if row < cut else 'ESM8'}" for row, line in enumerate(lines)]
        path.write_text("\n".join([f"{header},symbol", *named]) + "\n")
        assert [warning for warning in inspect(path).warnings if "contract" in warning] == found


BAR = {"open": "4000.00", "high": "4000.50", "low": "4000.00", "close": "4000.25", "volume": "1"}
FLAT = {"open": "4000.00", "high": "4000.00", "low": "4000.00", "close": "4000.00", "volume": "3"}


@pytest.mark.parametrize(
    ("fact", "bar", "rows", "counted"),
    [
        ("invented_fills", BAR, 3, 3),
        ("invented_fills", BAR, 2, 0),
        ("invented_fills", BAR | {"high": "4000.75"}, 5, 0),
        ("invented_fills", BAR | {"volume": "2"}, 5, 0),
        ("flat_repeats", FLAT, 5, 4),
        ("flat_repeats", FLAT, 4, 0),
        ("flat_repeats", FLAT | {"high": "4000.25"}, 8, 0),
        ("zero_volume", {"volume": "0"}, 2, 2),
    ],
)
def test_suspicious_bars(changed, fact, bar, rows, counted):
    path = changed({5000 + row: bar for row in range(rows)})
    quality = inspect(path, accepted=["bad_print"])
    assert quality.facts[fact] == counted
    line = 5002 + (fact == "flat_repeats")
    told = [warning.split(": ")[0] for warning in quality.warnings if "no bar around it" not in warning]
    assert (quality.errors, told) == ([], [f"line {line}"] if counted else [])


ERRORS = {
    "low": ("ohlc_violations", {"low": "4444.00"}, "open or close is outside low..high (1 rows); correct"),
    "zero": ("not_positive", {"low": "0"}, "a price is not above zero (1 rows)"),
    "vix": ("vix_not_positive", {"vix": "-1"}, "vix is not above zero (1 rows)"),
    "text": ("unreadable", {"close": "n/a"}, "close is 'n/a', not a number (1 rows cannot be read)"),
    "cells": ("unreadable", "1,2,3\n", "3 cells, but the header has 7 (1 rows"),
    "blank": ("unreadable", "\n", "the line is blank (1 rows"),
    "quote": ("unreadable", '"2018-01-05T10:00:00Z,1,2,3,4,5,6\n', "a quote that is not closed (1 rows"),
    "nul": ("unreadable", "2018-01-05T10:00:00Z\0,1,1,1,1,5,6\n", "a NUL byte, so that this is not text (1 rows"),
    "backwards": (
        "out_of_order",
        {"ts": "2018-01-04T22:30:00Z"},
        "the stamp is before that of the line above (1 rows)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ERRORS)
def test_one_bad_row_is_named_and_the_others_are_looked_at(changed, minutes, case):
    fact, change, told = ERRORS[case]
    path = changed({5000: change})
    quality = inspect(path)
    assert quality.facts[fact] == 1
    assert len(quality.errors) == 1
    assert quality.errors[0].startswith(f"{path}, line 5002: ")
    assert told in quality.errors[0]
    assert (quality.facts["rows"], quality.facts["complete_rth_sessions"]) == (26 * BARS, 26)


def test_a_file_with_the_newest_line_first_is_not_said_to_lack_sessions(tmp_path):
    path = tmp_path / "m.csv"
    header, *lines = synthetic_csv(2, 7).decode().splitlines(keepends=True)
    path.write_text(header + "".join(reversed(lines)))
    rows = len(lines) - 1
    assert inspect(path).errors == [
        f"{path}, line 3: the stamp is before that of the line above ({rows} rows); sort the file by ts"
    ]


def test_a_line_in_latin_1(changed):
    path = changed({})
    lines = path.read_bytes().splitlines(keepends=True)
    lines[77] = b"\xe9" + lines[77]
    path.write_bytes(b"".join(lines))
    assert f"{path}, line 78: the line is not UTF-8 text" in inspect(path).errors[0]


def test_blanks_around_values_and_quotes_are_no_fault(changed, minutes):
    spaced, quoted = (minutes.read_text().splitlines()[row + 1].split(",") for row in (5000, 6000))
    path = changed({5000: f" {' , '.join(spaced)} \n", 6000: ",".join(f'"{cell}"' for cell in quoted) + "\n"})
    assert inspect(path) == inspect(minutes)


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "  \n"])
def test_blank_lines_at_the_end_are_no_rows(minutes, tmp_path, end):
    path = tmp_path / "m.csv"
    path.write_bytes(minutes.read_bytes() + end.encode())
    assert inspect(path) == inspect(minutes)


def test_blank_lines_that_are_not_at_the_end_keep_their_place(minutes, tmp_path, monkeypatch):
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 500)
    lines = minutes.read_text().splitlines(keepends=True)
    path = tmp_path / "m.csv"
    path.write_text("".join([*lines[:200], "\n" * 1000, *lines[200:300]]) + "1,2")
    quality = inspect(path)
    assert quality.facts["unreadable"] == 1001
    assert f"{path}, line 201: the line is blank (1001 rows" in quality.errors[0]


def test_a_cut_file(minutes, tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(minutes.read_bytes()[:-1])
    assert f"line {26 * BARS + 1}: the file does not end with a newline" in inspect(path).errors[0]


def test_blocks_of_any_size_tell_the_same(changed, monkeypatch):
    path = changed(
        {
            3000 * n + 500: change if isinstance(change, str) else dict(change)
            for n, (_, change, _) in enumerate(ERRORS.values())
            if n < 8
        }
        | {5001 + row: BAR for row in range(20)}
        | {at(9, "10:00"): "", at(13, "12:00"): ""}
    )
    whole = inspect(path)
    assert len(whole.errors) == 4
    monkeypatch.setattr(merged_csv, "BLOCK_BYTES", 100_000)
    assert inspect(path) == whole


def test_duplicates(changed, minutes):
    lines = minutes.read_text().splitlines(keepends=True)
    other = lines[7001].replace(",", ",1", 1)
    path = changed({5000: lines[5001] * 3, 7000: lines[7001] + other})
    quality = inspect(path)
    assert (quality.facts["exact_duplicates"], quality.facts["conflicting_duplicates"]) == (2, 1)
    assert any("line 7005: the same stamp with other values" in error for error in quality.errors)
    assert inspect(path).warnings[0] == "line 5003: 2 rows repeat the one before; loading drops them"


@pytest.mark.parametrize(("rows", "stops"), [(30, False), (60, True)])
def test_prices_off_the_grid(changed, rows, stops):
    path = changed({5000 + row: {"high": "9000.10"} for row in range(rows)})
    quality = inspect(path)
    assert quality.facts["off_grid"] == rows
    told = [quality.errors, inspect(path).warnings]
    assert "line 5002" in told[0 if stops else 1][0]
    assert told[1 if stops else 0] == []


def test_vix(changed):
    path = changed({5000: {"vix": ""}} | {row: {"vix": "15.00"} for row in range(8 * BARS, 14 * BARS)})
    quality = inspect(path)
    assert quality.errors == []
    assert quality.facts["null_vix"] == 931
    # The VIX is constant from Thursday evening on; on Tuesday at 18:00 it is 5 days old, and four sessions are left.
    assert quality.facts["stale_vix"] == 4 * BARS - 1
    assert [warning.partition(": ")[2] for warning in inspect(path).warnings] == [
        f"{4 * BARS - 1} rows have a VIX that has not changed for more than 5 days",
        "1 rows have no VIX, although rows above have one",
    ]


def test_synthetic_half_days_which_are_long_are_no_flaw(summer):
    quality = inspect(summer)
    assert quality.facts["outside_trading_hours"] > len(quality.facts["half_days"]) > 0
    assert not any("not known to be open" in warning for warning in quality.warnings)


def test_a_file_without_any_vix_stops_training(changed):
    path = changed({row: {"vix": ""} for row in range(26 * BARS)})
    assert f"{path}: no row has a VIX value; make the file again with `vpoc merge --vix`" in inspect(path).errors


def test_clocks_that_are_off(minutes, tmp_path):
    text = minutes.read_text()
    hours = [f"T{hour:02}:" for hour in range(24)]
    path = tmp_path / "late.csv"
    path.write_text(
        "".join(line.replace(line[10:14], hours[int(line[11:13]) - 3], 1) for line in text.splitlines(True)[961:])
    )
    path.write_text(HEADER + path.read_text())
    warnings = inspect(path).warnings
    assert any("the time zone of the stamps is probably wrong" in warning for warning in warnings)
    assert any(" bars begin when the market is not known to be open" in warning for warning in warnings)


def test_stamps_of_the_end(merged, tmp_path):
    path = tmp_path / "ends.csv"
    header, *lines = merged.read_text().splitlines()
    begins = np.array([line[:19] for line in lines], dtype="datetime64[s]")
    ends = [f"{stamp}Z{line[20:]}" for stamp, line in zip(begins + 600, lines, strict=True)]
    path.write_text("\n".join([header, *ends]) + "\n")
    refused = [error for error in inspect(path).errors if "the stamps are the END of the bars" in error]
    assert len(refused) == 1
    assert "--accept end_stamps" in refused[0]
    assert not any("END" in error for error in inspect(path, accepted=["end_stamps"]).errors)


def test_a_file_that_is_no_table_of_bars(tmp_path):
    path = tmp_path / "m.csv"
    for text, told in {
        "": "the file is empty",
        HEADER: "there is a header but no rows",
        HEADER + "\n\n": "there is a header but no rows",
        HEADER + "a,b\n" * 9: "line 2: 2 cells, but the header has 7; give a file with bars",
        "ts,open,vix\n1,2,3\n": "no column high, low, close, volume; there are: ts, open, vix; `vpoc merge` makes one",
        HEADER[:-1] + ",Open\n": "appears twice in the header",
    }.items():
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            inspect(path)
        assert told in str(caught.value)
        assert str(caught.value).startswith(str(path))


def test_a_symbol_in_some_rows_only(minutes, tmp_path):
    header, *lines = minutes.read_text().splitlines()
    path = tmp_path / "m.csv"
    path.write_text(
        "\n".join([f"{header},symbol", *(f"{line},{'ESH8' * (row > 50)}" for row, line in enumerate(lines))]) + "\n"
    )
    assert any("the symbol is empty, but not in every row" in error for error in inspect(path).errors)


def test_bars_of_two_lengths_cannot_be_parted(changed):
    path = changed({at(3, "10:00"): {"ts": "2018-01-05T15:00:30Z"}})
    quality = inspect(path)
    assert len(quality.errors) == 1
    assert "does not start a whole number of bars of 60 seconds after 09:30" in quality.errors[0]
    assert quality.facts["sessions"] is None


def test_a_vendors_file(minutes, tmp_path):
    lines = minutes.read_text().splitlines()[1:]
    path = tmp_path / "vendor.csv"
    rows = [",".join([line.split(",")[0].replace("T", " ").replace("Z", ""), *line.split(",")[1:6]]) for line in lines]
    path.write_text("time,open,high,low,close,volume\n" + "\n".join(rows[: 5 * BARS]) + "\n")
    quality = inspect(path, zone="UTC", stamp_side="start")
    assert (quality.facts["zone"], quality.facts["stamp_side"], quality.facts["null_vix"]) == ("UTC", "start", None)
    assert quality.errors == []
    assert any("23 complete sessions are needed" in warning for warning in quality.warnings)
    rows[77] = rows[77].replace(rows[77].split(",")[3], "9999.00")
    path.write_text("time,open,high,low,close,volume\n" + "\n".join(rows) + "\n")
    assert (
        f"{path}, line 79: open or close is outside low..high (1 rows)"
        in inspect(path, zone="UTC", stamp_side="start").errors[0]
    )


def test_of_several_contracts_one_at_a_time_is_looked_at(minutes, tmp_path):
    lines = minutes.read_text().splitlines()[1:]
    path = tmp_path / "databento.csv"
    rows = []
    for line in lines[: 8 * BARS]:
        ts, open_, high, low, close, volume, _ = line.split(",")
        rows.append(f"{ts},{open_},{high},{low},{close},{volume},ESH8")
        rows.append(f"{ts},{open_},{high},{low},{close},1,ESM8")
        rows.append(f"{ts},-5.05,-5.00,-5.10,-5.05,1,ESH8-ESM8")
    path.write_text("ts_event,open,high,low,close,volume,symbol\n" + "\n".join(rows) + "\n")
    quality = inspect(path)
    assert quality.errors == []
    assert (quality.facts["rows"], quality.facts["conflicting_duplicates"]) == (8 * BARS, 0)


def test_a_merged_file_is_read_in_one_way(minutes):
    with pytest.raises(UserError, match="leave out --zone"):
        inspect(minutes, zone="UTC")


@pytest.mark.real_data
def test_real_files(real_data):
    quality = inspect(real_data("es-1min-2013-10.csv"))
    facts = {"rows": 6826, "zone": "UTC", "stamp_side": "start", "outside_trading_hours": 0}
    assert quality.facts == quality.facts | facts
    assert (quality.facts["sessions"], quality.facts["missing_rth_bars"], quality.errors) == (5, 0, [])
    quality = inspect(real_data("es-5min-2026.csv"))
    assert quality.facts["zone"] == "America/New_York"
    assert (quality.facts["zero_volume"], quality.facts["complete_rth_sessions"], quality.errors) == (44, 50, [])
    assert [(roll["trade_date"], roll["jump_points"]) for roll in quality.facts["rolls"]] == [("2026-03-16", -12.5)]


def test_the_command(changed, minutes, capsys):
    path = changed({5000: {"low": "4444.00"}, at(3, "10:00"): ""})
    assert run(["check", str(path), "--lookback", "20"]) == 1
    captured = capsys.readouterr()
    assert "stamp side               start\n" in captured.out
    assert "  trade date 2018-01-05, expected 390, found 389, complete yes\n" in captured.out
    assert captured.err == f"vpoc: {inspect(path).errors[0]}\n"
    assert run(["check", str(minutes), "--lookback", "20", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["rows"], document["errors"]) == (2, 26 * BARS, [])


def test_long_lists_are_cut(changed, capsys):
    path = changed({at(session, "10:00"): "" for session in range(25)})
    run(["check", str(path), "--lookback", "20"])
    out = capsys.readouterr().out
    assert out.count("expected 390, found 389") == 20
    assert "  and 5 more; --json lists them all\n" in out
