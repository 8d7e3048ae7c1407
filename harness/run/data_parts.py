"""A merged CSV as a row of chunks, and files with some of them: sessions, where its stamps tell them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from harness.base.errors import UserError

# A trade date begins at 18:00 there.
EXCHANGE, BEGINS = "America/New_York", 18
# Of a file whose stamps tell no sessions.
CHUNKS_OF_ROWS = 1000
BLOCK = 1 << 20
# A row of bars has a hundred bytes.
LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class DataChunks:
    """The chunks of a file: `starts` is where each begins, in bytes, and, last, where the file ends.

    `names` are the trade dates of sessions; of chunks of rows their first row, from 1.
    """

    file: Path
    header: bytes
    starts: tuple[int, ...]
    names: tuple[str, ...]
    are_sessions: bool

    def __len__(self) -> int:
        return len(self.names)

    def write(self, first: int, last: int, target: Path) -> None:
        """Write a file with the chunks from `first` on and before `last`.

        Raises:
            UserError: when it cannot be written.
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
            raise UserError(f"{target}: cannot be written: {error.strerror}") from None


def read_chunks(file: Path) -> DataChunks:
    """Return the sessions of a merged CSV; where its stamps are not UTC with a Z, up to a thousand parts of its rows.

    Raises:
        UserError: when it cannot be read, has no rows, or a line that is longer than any of bars.
    """
    try:
        with file.open("rb") as stream:
            header = stream.readline(LONGEST_LINE)
            place, lines, hours = len(header), [], []
            line = header
            while len(line) < LONGEST_LINE and (line := stream.readline(LONGEST_LINE)):
                # An empty line, as at the end of many files, is no row.
                if line.strip():
                    lines.append(place)
                    hours.append(line[:20])
                place += len(line)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    if len(line) == LONGEST_LINE:
        told = "its first line" if line is header else f"row {len(lines)}"
        raise UserError(f"{file}: {told} has {LONGEST_LINE:,} bytes or more; give a merged CSV")
    if not lines:
        raise UserError(f"{file}: has no rows")
    with suppress(ValueError):
        return _of_sessions(file, header, (*lines, place), hours)
    size = -(-len(lines) // CHUNKS_OF_ROWS)
    firsts = range(0, len(lines), size)
    names = tuple(f"row {first + 1}" for first in firsts)
    return DataChunks(file, header, (*(lines[first] for first in firsts), place), names, are_sessions=False)


def _of_sessions(file: Path, header: bytes, places: Sequence[int], stamps: Sequence[bytes]) -> DataChunks:
    """Return the chunks of a file by trade date.

    Raises:
        ValueError: where a stamp is no UTC time with a Z.
    """
    zone, known = ZoneInfo(EXCHANGE), dict[bytes, date]()
    starts, names = list[int](), list[str]()
    last: date | None = None
    for place, stamp in zip(places, stamps, strict=False):
        if (day := known.get(stamp[:13])) is None:
            if stamp[-1:] != b"Z":
                raise ValueError(stamp)
            at = datetime.strptime(stamp[:13].decode(), "%Y-%m-%dT%H").replace(tzinfo=UTC)
            day = known[stamp[:13]] = (at.astimezone(zone) + timedelta(hours=24 - BEGINS)).date()
        if day != last:
            last = day
            starts.append(place)
            names.append(day.isoformat())
    return DataChunks(file, header, (*starts, places[-1]), tuple(names), are_sessions=True)
