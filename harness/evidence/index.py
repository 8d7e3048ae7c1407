"""`records.db`: an index of the run folders, which can always be rebuilt from them.

It is kept with this user's state on this host: other users and hosts that share the results folder have their own.
"""

import io
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from pydantic_core import from_json

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.failpoints import reached
from harness.base.files.locks import locked
from harness.base.files.storage import create, read_regular, unfinished
from harness.evidence.app_reports.exposure import exposure_of
from harness.evidence.files.run_files import Record
from harness.evidence.gpus.strikes import struck_out
from harness.evidence.index_file import index_file
from harness.evidence.records import Results
from harness.evidence.row import Row

Used = TypeVar("Used")

NAMES = Row._fields
# The values of a run are a JSON list in one column, whose name lists all fields: other fields make another layout.
TABLE = f"CREATE TABLE runs (run_id, started, [{' '.join(NAMES)}], PRIMARY KEY (run_id))"
INSERT = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)"
# Most bytes of the file of changes that are read: a hundred thousand changes.
MOST_CHANGED_BYTES = 8 << 20
SELECT = f"SELECT [{' '.join(NAMES)}] FROM runs"  # noqa: S608


class Index:
    """The index of one results folder."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._file = index_file(results.folder)

    def add(self, record: Record) -> None:
        """Enter one record.

        Raises:
            UserError: when the index cannot be written; the record itself is in its run folder.
        """
        reached("index-begins")
        self._use(lambda database: self._enter(database, [record]))
        reached("index-written")

    def rebuild(self) -> list[str]:
        """Rebuild the index from the run folders; return which of them could not be read, and why.

        Raises:
            UserError: when the index cannot be written.
        """
        with self._locked():
            return self._rebuild()

    def _rebuild(self) -> list[str]:
        damaged: list[str] = []
        records = self._results.records(damaged)
        temporary = unfinished(self._file)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            create(temporary).close()
            with closing(sqlite3.connect(temporary)) as database, database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(TABLE)
                database.executemany(INSERT, map(_values_of, self._rows(records, damaged)))
            reached("index-rebuilt")
            # If a process died in a transaction, its journal beside the old index would be played back into the new
            # one.
            for old in (self._file, self._file.with_name(f"{self._file.name}-journal")):
                old.unlink(missing_ok=True)
            temporary.replace(self._file)
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"{self._file}: cannot be written: {error}; the records are in {self._results.runs}"
            ) from None
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return damaged

    def rows(self) -> list[Row]:
        """Return every row, oldest first; runs that the index lacks are entered first.

        If no index can be written, as on a full disk, the rows are made from the records.
        """
        if not self._results.runs.is_dir():
            return []
        try:
            return self._use(self._complete_rows)
        except UserError:
            return _in_order(self._rows(self._results.records([]), []))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the index: a process that writes while another one replaces the index would fail."""
        with ExitStack() as stack:
            # A folder that cannot be written to is reported by the next write.
            with suppress(OSError):
                stack.enter_context(locked(self._file.with_name(f".{self._file.name}.lock")))
            yield

    def _use(self, use: Callable[[sqlite3.Connection], Used]) -> Used:
        """Call `use` with the index, and once more with a rebuilt index if that fails."""
        with self._locked():
            try:
                return self._with_database(use)
            except sqlite3.Error:
                self._rebuild()
                try:
                    return self._with_database(use)
                except sqlite3.Error as error:
                    raise UserError(f"{self._file}: cannot be used: {error}; is the disk full?") from None

    def _with_database(self, use: Callable[[sqlite3.Connection], Used]) -> Used:
        if not self._file.exists():
            raise sqlite3.OperationalError("there is no index yet")
        with closing(sqlite3.connect(self._file, timeout=60)) as database, database:
            database.execute("PRAGMA synchronous = FULL")
            _check_layout(database)
            return use(database)

    def _complete_rows(self, database: sqlite3.Connection) -> list[Row]:
        self._enter(database, [])
        return _rows_of(database)

    def _enter(self, database: sqlite3.Connection, records: list[Record]) -> None:
        """Enter these records, and those of runs that the index lacks or that changed; no other run folder is read."""
        known = {run_id for (run_id,) in database.execute("SELECT run_id FROM runs")}
        begun = set(self._results.begun())
        if known - begun:
            raise sqlite3.DatabaseError("the index has runs that are gone")
        changed = self._changed(database, known)
        lacking = (begun - known | changed) - {record.intent.run_id for record in records}
        # One after the other, because together they may take gigabytes of memory. `rebuild` reports the damaged ones.
        read = filter(None, map(self._results.readable_record, sorted(lacking)))
        database.executemany(INSERT, map(_values_of, self._rows(chain(records, read), [])))

    def _changed(self, database: sqlite3.Connection, known: set[str]) -> set[str]:
        """Return the `known` runs that changed since the file of changes was read; the index stores how far."""
        try:
            said = read_regular(self._results.changed, MOST_CHANGED_BYTES)
        except OSError:
            return set()
        (read,) = database.execute("PRAGMA user_version").fetchone()
        if len(said) == read:
            return set()
        database.execute(f"PRAGMA user_version = {len(said)}")
        # A file that is shorter than before is a new one, and is read from its beginning.
        lines = io.BytesIO(said[read if read < len(said) else 0 :])
        return {run_id for line in lines if (run_id := line.decode(errors="replace").rstrip("\n")) in known}

    def _rows(self, records: Iterable[Record], damaged: list[str]) -> Iterator[Row]:
        """Yield the rows of records; those that no index holds are named in `damaged`."""
        for record in records:
            try:
                yield self.row_of(record)
            except UserError as error:
                damaged.append(str(error))

    def row_of(self, record: Record) -> Row:
        """Return the row of a record, with what else its run folder shows.

        Raises:
            UserError: when the row is too large.
        """
        folder = self._results.folder_of(record.intent.run_id)
        row = Row.of(
            record,
            imported=folder.imported.exists(),
            struck=struck_out(folder),
            exposure=exposure_of(record, folder),
        )
        if folder.is_mine:
            return row
        if row.is_too_large:
            raise UserError(f"{folder.record}: is damaged: it names more than any run does; move its folder away")
        return row.quoted()


def _check_layout(database: sqlite3.Connection) -> None:
    """Refuse a file with anything but our table: a view may have no end, and a trigger runs at an insertion.

    Raises:
        sqlite3.DatabaseError: when the file is not as `rebuild` makes it.
    """
    made = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 2")]
    if made != [TABLE]:
        raise sqlite3.DatabaseError("the index has another layout")


def _rows_of(database: sqlite3.Connection) -> list[Row]:
    try:
        # This parser makes one object of equal texts, in half the time of Python's own.
        return _in_order(Row._make(from_json(values)) for (values,) in database.execute(SELECT))
    except (TypeError, ValueError):
        raise sqlite3.DatabaseError("the index is damaged") from None


def _values_of(row: Row) -> tuple[str, float, str]:
    """Return the columns of the table for a row."""
    return row.run_id, row.started, json.dumps(row)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=attrgetter("started", "run_id"))


def rebuild_index(results: Results) -> tuple[int, list[str]]:
    """Rebuild the index; return the number of records, and which run folders could not be read.

    Raises:
        UserError: when there are no run folders, or the index cannot be written.
    """
    if not results.runs.is_dir():
        raise NoSuchFileError(f"{results.runs}: no such folder; give --results DIR")
    damaged = Index(results).rebuild()
    return len(Index(results).rows()), damaged
