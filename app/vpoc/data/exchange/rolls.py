"""The sessions where the contract changes: no level of one contract is compared with a price of another."""

import csv
import datetime as dt
import re
from pathlib import Path

import numpy as np

from vpoc.arrays import Ints
from vpoc.data.exchange.calendar import roll_dates
from vpoc.data.exchange.sessions import Sessions
from vpoc.errors import UserError
from vpoc.files import read_bytes, sha256_file

CONTRACT_NAME = re.compile(r"[A-Z0-9]{1,4}[FGHJKMNQUVXZ]\d{1,4}")
"""A root with the letter of a month and a year, such as ESH6; a continuous series has no month."""
_EPOCH = dt.date(1970, 1, 1)
AUTO, COLUMN, CALENDAR, NONE = WORDS = "auto", "column", "calendar", "none"


def roll_numbers(sessions: Sessions, symbols: tuple[str, ...], rolls: str) -> Ints:
    """Return the number of rolls before each session [sessions].

    `rolls`: "column": where the symbol changes; "calendar": the Monday of CME's quarterly expiry weeks; "none"; the
    path of a CSV file with a column `date` of trade dates that begin a new contract; "auto": the column if it names
    contracts, else the calendar. UserError on a file that cannot be read like this.
    """
    if rolls == AUTO:
        named = len(symbols) > 1 or any(CONTRACT_NAME.fullmatch(symbol) for symbol in symbols)
        rolls = COLUMN if named else CALENDAR
    if rolls == NONE or not len(sessions):
        return np.zeros(len(sessions), dtype=np.int64)
    if rolls == COLUMN:
        if not symbols:
            raise UserError("--rolls column: the data names no symbol; use --rolls calendar, or a CSV file of dates")
        return _of_column(sessions)
    span = int(sessions.date[0]), int(sessions.date[-1])
    dates = roll_dates(*span) if rolls == CALENDAR else _of_file(Path(rolls))
    return np.searchsorted(dates, sessions.date, side="right").astype(np.int64)


def rolls_sha256(rolls: str) -> str:
    """Return the SHA-256 of the file that `rolls` of `roll_numbers` names; empty for a word. UserError without it."""
    return "" if rolls in WORDS else sha256_file(Path(rolls))


def _of_column(sessions: Sessions) -> Ints:
    known = np.flatnonzero(sessions.contract >= 0)
    changed = np.zeros(len(sessions), dtype=np.int64)
    changed[known[1:]] = sessions.contract[known[1:]] != sessions.contract[known[:-1]]
    return np.cumsum(changed)


def _of_file(path: Path) -> Ints:
    text = read_bytes(path).decode("utf-8-sig", "replace")
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise UserError(f"{path}: not a CSV file ({error}); give one with a column date") from error
    if not lines or "date" not in [cell.strip().lower() for cell in lines[0]]:
        raise UserError(f"{path}: no column named date; give a CSV file with a header and one trade date per roll")
    place = [cell.strip().lower() for cell in lines[0]].index("date")
    days = []
    for number, cells in enumerate(lines[1:], 2):
        if not any(cells):
            continue
        try:
            days.append((dt.date.fromisoformat(cells[place].strip()) - _EPOCH).days)
        except (ValueError, IndexError):
            raise UserError(f"{path}, line {number}: no date like 2026-03-16; correct or remove the row") from None
    return np.array(sorted(days), dtype=np.int64)
