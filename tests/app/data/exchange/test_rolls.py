"""Tests of where the contract changes: by a column, by CME's calendar, by the user's file, or nowhere."""

import numpy as np
import pytest

from vpoc.data.exchange.rolls import roll_numbers
from vpoc.data.exchange.selection import select_sessions
from vpoc.data.exchange.sessions import split_sessions
from vpoc.data.load import load_bars
from vpoc.errors import UserError


@pytest.fixture(scope="module")
def bars(summer):
    """Return 26 sessions from 4 June 2018 on; the sixth is 11 June, the day of CME's roll."""
    return load_bars(summer)


@pytest.fixture(scope="module")
def sessions(bars):
    return split_sessions(bars)


def numbers(sessions, rolls, symbols=()):
    return roll_numbers(sessions, symbols, str(rolls)).tolist()


def by_contract(bars, starts):
    """Return the sessions of the bars when a new contract begins at each row of `starts`."""
    contract = np.searchsorted(starts, np.arange(len(bars)), side="right")
    return split_sessions(type(bars)(**{**vars(bars), "contract": contract}))


def test_nowhere(sessions):
    assert numbers(sessions, "none", ("ESM8", "ESU8")) == [0] * 26


def test_by_the_calendar(sessions):
    assert numbers(sessions, "calendar") == [0] * 5 + [1] * 21


def test_a_calendar_roll_on_the_first_session_changes_nothing(bars, sessions):
    later = split_sessions(bars.take(slice(int(sessions.first[5]), None)))
    assert len(set(numbers(later, "calendar"))) == 1


def test_where_the_symbol_changes(bars, sessions):
    found = by_contract(bars, [sessions.first[7], sessions.first[20]])
    assert numbers(found, "column", ("ESM8", "ESU8", "ESZ8")) == [0] * 7 + [1] * 13 + [2] * 6
    assert numbers(sessions, "column", ("ES",)) == [0] * 26


def test_a_symbol_that_changes_in_the_night_or_after_the_close_counts_from_the_next_regular_hours(bars, sessions):
    for start in (sessions.start[7] - 3, sessions.stop[6]):
        assert numbers(by_contract(bars, [start]), "column", ("ESM8", "ESU8")) == [0] * 7 + [1] * 19


@pytest.mark.parametrize(("first", "last"), [(1, None), (-1, None), (10, 11)])
def test_a_session_of_two_contracts_is_not_complete(bars, sessions, first, last):
    """A profile of both would have prices on either side of the jump; one bar of another contract suffices."""
    regular = np.arange(len(bars))[sessions.start[7] : sessions.stop[7]]
    changes = [regular[first], *([regular[last]] if last else [])]
    found = by_contract(bars, changes)
    assert np.flatnonzero(found.mixed).tolist() == [7]
    assert np.flatnonzero(found.complete != sessions.complete).tolist() == [7]
    assert sessions.complete[7]


def test_a_session_in_progress_of_two_contracts_gives_no_rows(bars, sessions):
    cut = bars.take(slice(0, int(sessions.stop[-1]) - 5))
    vix = np.ones(len(sessions))
    for change, giving in ((sessions.start[-1] + 9, []), (sessions.start[-1] - 3, [25])):
        found = by_contract(cut, [change])
        assert found.in_progress
        rolls = np.zeros(len(found), dtype=np.int64)
        assert select_sessions(found, rolls, vix, rows="bar", lookback=25).sessions.tolist() == giving


def test_a_session_without_regular_hours_has_no_contract(bars, sessions):
    rows = np.ones(len(bars), bool)
    rows[sessions.start[7] : sessions.stop[7]] = False
    contract = np.arange(len(bars)) >= sessions.first[7]
    found = split_sessions(type(bars)(**{**vars(bars), "contract": contract.astype(np.int64)}).take(rows))
    assert found.contract.tolist() == [0] * 7 + [-1] + [1] * 18
    assert numbers(found, "column", ("ESM8", "ESU8")) == [0] * 8 + [1] * 18


@pytest.mark.parametrize("symbols", [(), ("ES",), ("ES1!",), ("@ES",), ("ES.c.0",)])
def test_auto_without_names_of_contracts_goes_by_the_calendar(sessions, symbols):
    assert numbers(sessions, "auto", symbols) == numbers(sessions, "calendar")


@pytest.mark.parametrize("symbols", [("ESM8",), ("ESM18",), ("ESU2018",), ("MESU8",), ("first", "second")])
def test_auto_with_names_of_contracts_goes_by_them(sessions, symbols):
    assert numbers(sessions, "auto", symbols) == [0] * 26


def test_auto_with_several_contracts(bars, sessions):
    found = by_contract(bars, [sessions.first[7]])
    assert numbers(found, "auto", ("ESM8", "ESU8")) == [0] * 7 + [1] * 19


@pytest.mark.parametrize(
    "text",
    [
        "date\n2018-06-14\n2018-06-28\n",
        "\ufeffdate\r\n2018-06-14\r\n2018-06-28\r\n",
        "note, Date \nsecond,2018-06-28\n\nfirst, 2018-06-14 \n\n",
        '"date","to"\n"2018-06-14","ESU8"\n"2018-06-28","ESZ8"',
    ],
)
def test_a_file_of_dates(sessions, tmp_path, text):
    path = tmp_path / "rolls.csv"
    path.write_bytes(text.encode())
    assert numbers(sessions, path) == [0] * 8 + [1] * 10 + [2] * 8


def test_a_date_without_a_session_counts_from_the_next(sessions, tmp_path):
    """4 July was a holiday and 16 June a Saturday; the other dates are outside the file."""
    path = tmp_path / "rolls.csv"
    path.write_text("date\n2018-07-04\n2018-06-16\n2019-03-11\n")
    assert numbers(sessions, path) == [0] * 10 + [1] * 12 + [2] * 4


def test_a_file_without_rolls(sessions, tmp_path):
    path = tmp_path / "rolls.csv"
    path.write_text("date\n")
    assert numbers(sessions, path) == [0] * 26


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("date\n2018-06-14\n2018-13-01\n", ", line 3: no date like 2026-03-16; correct or remove the row"),
        ("date\n2018-06-14\n\n06/28/2018\n", ", line 4: no date like"),
        ("n,date\n1,2018-06-14\n2\n", ", line 3: no date like"),
        ("date,n\n,1\n", ", line 2: no date like"),
        ("day\n2018-06-14\n", ": no column named date; give a CSV file with a header"),
        ("2018-06-14\n2018-06-28\n", ": no column named date"),
        ("\n", ": no column named date"),
        ("", ": the file is empty"),
        (b"\x89PNG\r\n\x1a\n\0", ": no column named date"),
        (b"date\n\xff\n", ", line 2: no date like"),
    ],
)
def test_a_bad_file_is_one_line(sessions, tmp_path, text, said):
    path = tmp_path / "rolls.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        numbers(sessions, path)
    assert str(caught.value).startswith(f"{path}{said}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_and_a_folder(sessions, tmp_path):
    for path, said in ((tmp_path / "none.csv", "no such file"), (tmp_path, "this is a folder")):
        with pytest.raises(UserError, match=said):
            numbers(sessions, path)


def test_no_sessions_at_all(sessions):
    for rolls in ("auto", "column", "calendar", "none"):
        assert numbers(sessions.take(slice(0, 0)), rolls, ("ESM8",)) == []


def test_a_column_that_is_not_there_and_a_file_that_is_no_table_are_refused(sessions, tmp_path):
    with pytest.raises(UserError, match="the data names no symbol; use --rolls calendar"):
        roll_numbers(sessions, (), "column")
    path = tmp_path / "rolls.csv"
    path.write_text('date\n"' + "x" * 200_000)
    with pytest.raises(UserError, match="not a CSV file"):
        roll_numbers(sessions, (), str(path))
