"""Splits a merged CSV into chunks, by session where its time stamps allow, and writes files with some of them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from harness.base.errors import UserError
from harness.base.files.storage import cannot_be_written

# A trade date begins at 18:00 in New York.
EXCHANGE, BEGINS = "America/New_York", 18
# Most chunks of a file whose time stamps show no sessions.
CHUNKS_OF_ROWS = 1000
BLOCK = 1 << 20
# Longest line, in bytes: a row of bars has about a hundred.
LONGEST_LINE = 1 << 16
# The sessions of four hundred years.
MOST_SESSIONS = 100_000


@dataclass(frozen=True)
class DataChunks:
    """The chunks of a file.

    `starts`: where each chunk begins, in bytes, and, last, where the file ends.
    `names`: the trade date of each session; for chunks of rows, the number of the first row, from 1.
    """

    file: Path
    header: bytes
    starts: tuple[int, ...]
    names: tuple[str, ...]
    are_sessions: bool

    def __len__(self) -> int:
        return len(self.names)

    def write(self, first: int, last: int, target: Path) -> None:
        """Write a file with the chunks from `first` on, up to but without `last`.

        Raises:
            UserError: when the file cannot be written.
        """
        try:
            with self.file.open("rb") as source, target.open("wb") as part:
                part.write(self.header)
                source.seek(self.starts[first])
                left = self.starts[last] - self.starts[first]
                while left and (block := source.read(min(left, BLOCK))):
                    part.write(block)
                    left -= len(block)
        except OSError as error:
            raise cannot_be_written(target, error) from None


def read_chunks(file: Path) -> DataChunks:
    """Return the sessions of a merged CSV; where its stamps are not UTC with a Z, up to a thousand chunks of its rows.

    Raises:
        UserError: when the file cannot be read, has no rows, or has a line that is too long for a row of bars.
    """
    try:
        with suppress(ValueError, OverflowError):
            return _of_sessions(file)
        return _of_rows(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield where the header and each row begin, with the line; last, where the file ends, with an empty line.

    The lines are not kept in memory, because a file may have millions of rows.
    """
    place = rows = 0
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                told = f"row {rows}" if place else "its first line"
                raise UserError(f"{file}: {told} has {LONGEST_LINE:,} bytes or more; give a merged CSV")
            # An empty line, as at the end of many files, is not a row.
            if line.strip() or not place:
                yield place, line
                rows += 1
            place += len(line)
    yield place, b""


def _of_sessions(file: Path) -> DataChunks:
    """Return the chunks of a file by trade date.

    Raises:
        ValueError, OverflowError: when a stamp is not a UTC time with a Z or has no trade date, or there are too
            many sessions.
    """
    lines = _lines(file)
    _, header = next(lines)
    starts, names, hour = list[int](), list[str](), b""
    for place, line in lines:
        if line[:13] != hour:
            hour = line[:13]
            # The empty line at the end of the file closes the last session.
            day = _trade_date(line[:20]) if line else ""
            if names[-1:] != [day]:
                starts.append(place)
                names.append(day)
        if len(names) > MOST_SESSIONS:
            raise ValueError(names[-1])
    if not names:
        raise ValueError(header)
    return DataChunks(file, header, tuple(starts), tuple(names[:-1]), are_sessions=True)


def _trade_date(stamp: bytes) -> str:
    if stamp[-1:] != b"Z":
        raise ValueError(stamp)
    at = datetime.strptime(stamp[:13].decode(), "%Y-%m-%dT%H").replace(tzinfo=UTC)
    return (at.astimezone(ZoneInfo(EXCHANGE)) + timedelta(hours=24 - BEGINS)).date().isoformat()


def _of_rows(file: Path) -> DataChunks:
    # Neither the header nor the empty line at the end is a row.
    count = sum(1 for _ in _lines(file)) - 2
    if count < 1:
        raise UserError(f"{file}: has no rows")
    size = -(-count // CHUNKS_OF_ROWS)
    lines = _lines(file)
    _, header = next(lines)
    starts = (place for row, (place, _) in enumerate(lines) if row % size == 0 or row == count)
    names = tuple(f"row {first + 1}" for first in range(0, count, size))
    return DataChunks(file, header, tuple(starts), names, are_sessions=False)
