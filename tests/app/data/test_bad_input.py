"""Tests of mistakes that users make with input files: each message is one line and says where and what to do."""

import pytest

from vpoc.data.checks.quality import inspect
from vpoc.data.load import load_bars
from vpoc.errors import UserError

HEADER = "ts,open,high,low,close,volume,vix\n"
GOOD = "2024-01-02T14:30:00Z,4000.00,4001.00,3999.00,4000.25,10,15.00\n"
LATER = "2024-01-02T14:31:00Z,4000.00,4001.00,3999.00,4000.25,10,15.00\n"

CASES = {
    "empty": ("", "empty"),
    "header only": (HEADER, "no rows"),
    "no price columns": ("ts,open,volume,vix\n2024-01-02T14:30:00Z,1,2,3\n", "high, low, close; there are: ts, open"),
    "doubled column": ("ts,Open,open,high,low,close,volume,vix\n" + GOOD, "appears twice"),
    "local stamp": (HEADER + GOOD.replace("T14", " 14").replace("Z", ""), "the stamps do not say their time zone"),
    "empty stamp": (HEADER + GOOD + LATER.replace("2024-01-02T14:31:00Z", ""), "line 3: ts is"),
    "text price": (HEADER + GOOD.replace("4000.25", "n/a"), "line 2: close is 'n/a', not a number"),
    "NaN price": (HEADER + GOOD + LATER.replace("3999.00", "NaN"), "line 3: low is 'NaN', not a number"),
    "infinite price": (HEADER + GOOD.replace("4001.00", "inf"), "line 2: high is 'inf'"),
    "empty price": (HEADER + GOOD.replace("4000.25", ""), "line 2: close is an empty cell"),
    "absurd price": (HEADER + GOOD.replace("4001.00", "1e300"), "beyond any price"),
    "zero price": (HEADER + GOOD.replace("3999.00", "0"), "not above zero"),
    "off grid": (HEADER + GOOD.replace("4000.25", "4000.30"), "not a multiple of 0.25"),
    "negative volume": (HEADER + GOOD.replace(",10,", ",-1,"), "line 2: volume -1 is negative"),
    "fractional volume": (HEADER + GOOD.replace(",10,", ",1.5,"), "line 2: volume 1.5 is not a whole number"),
    "absurd volume": (HEADER + GOOD.replace(",10,", ",1e15,"), "more than any market trades"),
    "NaN vix": (HEADER + GOOD.replace("15.00", "NaN"), "line 2: vix is 'NaN'"),
    "high below close": (HEADER + GOOD.replace("4001.00", "4000.00"), "line 2: open or close is outside low..high"),
    "backwards": (HEADER + LATER + GOOD, "line 3: the stamp is before"),
    "conflict": (HEADER + GOOD + GOOD.replace(",10,", ",11,"), "line 3: the same stamp with other values"),
    "really doubled column": (HEADER[:-1] + ",low\n" + GOOD[:-1] + ",1\n", "appears twice"),
    "year 1970": (
        HEADER + GOOD + LATER.replace("2024", "1970"),
        "line 3: ts is '1970-01-02T14:31:00Z', not in the years",
    ),
    "year 2101": (HEADER + GOOD.replace("2024", "2101"), "line 2: ts is '2101-01-02T14:30:00Z', not in the years 1990"),
    "no vix at all": (HEADER + GOOD + LATER.replace("15.00", "0"), "line 3: vix is not above zero (1 rows)"),
    "cut in a cell": (HEADER + GOOD + LATER[:-3], "line 3: the file does not end with a newline"),
    "cut at the end of a line": (HEADER + GOOD[:-1], "line 2: the file does not end with a newline"),
    "a symbol that comes late": (
        HEADER.replace("vix", "vix,symbol") + GOOD[:-1] + ",\n" + LATER[:-1] + ",ESH4\n",
        "line 2: the symbol is empty, but not in every row",
    ),
    "ragged": (HEADER + GOOD[:-1] + ",1,2,3\n", "line 2: 10 cells, but the header has 7"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_and_where(tmp_path, case):
    content, expected = CASES[case]
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_bars(path)
    message = str(caught.value)
    assert expected in message
    assert str(path) in message
    assert "\n" not in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\0\0", bytes(range(256)) * 4, b"ts,open\n\xff\xfe\n", b"\0"])
def test_binary_files(tmp_path, content):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not a text file|not UTF-8"):
        load_bars(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_bars(tmp_path / "none.csv")
    with pytest.raises(UserError, match="this is a folder"):
        load_bars(tmp_path)


def test_a_path_that_cannot_be_looked_at(tmp_path):
    with pytest.raises(UserError, match="the name is too long; give a shorter one"):
        inspect(tmp_path / ("a" * 300))


def test_few_off_grid_prices_are_rounded_and_counted(tmp_path):
    rows = [f"2024-01-02T{h:02}:{m:02}:00Z,4000,4001,3999,4000.25,10,15\n" for h in range(20) for m in range(60)]
    rows[500] = rows[500].replace("4000.25", "4000.30")
    path = tmp_path / "m.csv"
    path.write_text(HEADER + "".join(rows))
    bars = load_bars(path)
    assert bars.off_grid.sum() == 1
    assert bars.close[500] == 16001


@pytest.mark.parametrize("end", ["\n", "\n\n\n", "\r\n\r\n", "  \n"])
def test_blank_lines_at_the_end_are_no_rows(tmp_path, end):
    path = tmp_path / "m.csv"
    path.write_bytes((HEADER + GOOD + LATER + end).encode())
    assert len(load_bars(path)) == 2


@pytest.mark.parametrize("symbols", [("ESH4", " ESH4 "), ("", " ")])
def test_symbols_are_stripped(tmp_path, symbols):
    path = tmp_path / "m.csv"
    lines = (f"{line[:-1]},{symbol}\n" for line, symbol in zip((GOOD, LATER), symbols, strict=True))
    path.write_text(HEADER.replace("vix", "vix,symbol") + "".join(lines))
    assert load_bars(path).symbols == ((symbols[0],) if symbols[0] else ())


def test_exact_duplicates_are_dropped(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(HEADER + GOOD + GOOD + LATER)
    assert len(load_bars(path)) == 2


def test_check_lists_every_problem(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(HEADER + LATER + LATER + GOOD + GOOD.replace(",10,", ",11,").replace("4001.00", "4000.00"))
    quality = inspect(path)
    assert quality.facts["exact_duplicates"] == 1
    assert quality.facts["conflicting_duplicates"] == 1
    assert quality.facts["ohlc_violations"] == 1
    assert [part for error in quality.errors for part in ("before", "same stamp", "outside") if part in error] == [
        "before",
        "same stamp",
        "outside",
    ]
