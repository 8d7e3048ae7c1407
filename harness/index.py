"""`records.db`: an index of the run folders. Losing it loses nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from harness.contracts import Record
from harness.errors import UserError
from harness.records import Results

FILE = "records.db"


@dataclass(frozen=True)
class Row:
    """What the index keeps of a record."""

    run_id: str
    campaign: str | None
    cell: str
    stack: str
    preset: str
    executor: str
    host_kind: str
    host_fingerprint: str
    environment_hash: str
    workload: str
    workload_hash: str
    outcome: str
    diagnosis: str | None
    detail: str
    ran_on: str
    started: float
    seconds: float
    samples_per_second: float | None

    @classmethod
    def of(cls, record: Record) -> "Row":
        """The row of a record."""
        intent = record.intent
        values: dict[str, Any] = {
            f.name: getattr(record if hasattr(record, f.name) else intent, f.name, None) for f in fields(cls)
        }
        values |= {"host_kind": intent.host.kind, "host_fingerprint": intent.host.fingerprint}
        values |= {"samples_per_second": record.result.throughput.samples_per_second if record.result else None}
        return cls(**values)

    def as_dict(self) -> dict[str, str | float | None]:
        """Plain values by name."""
        return asdict(self)


COLUMNS = ", ".join(f.name for f in fields(Row))
INSERT = f"INSERT OR REPLACE INTO runs ({COLUMNS}) VALUES ({', '.join('?' * len(fields(Row)))})"  # noqa: S608


class Index:
    """The index of one results folder."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._file = results.folder / FILE

    def add(self, record: Record) -> None:
        """Enter one record."""
        with self._open() as database:
            database.execute(INSERT, astuple(Row.of(record)))

    def rebuild(self) -> int:
        """Make the index anew from the run folders; returns the number of records."""
        rows = [astuple(Row.of(record)) for record in self._results.records()]
        with self._open() as database:
            database.execute("DELETE FROM runs")
            database.executemany(INSERT, rows)
        return len(rows)

    def rows(self) -> list[Row]:
        """Every row, oldest first. An index that is missing is made first."""
        if not self._file.exists() and self._results.runs.is_dir():
            self.rebuild()
        if not self._file.exists():
            return []
        with self._open() as database:
            return [Row(*row) for row in database.execute(f"SELECT {COLUMNS} FROM runs ORDER BY started, run_id")]  # noqa: S608

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            database = _connect(self._file)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise UserError(f"{self._file}: {error}; is the folder writable?") from None
            # Not a database at all, or one of another layout: it is only an index.
            self._file.unlink()
            database = _connect(self._file)
            if self._results.runs.is_dir():
                database.executemany(INSERT, [astuple(Row.of(record)) for record in self._results.records()])
        try:
            with database:
                yield database
        finally:
            database.close()


def _connect(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, timeout=60)
    try:
        database.execute("PRAGMA synchronous = FULL")
        columns = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
        if columns and columns != [f.name for f in fields(Row)]:
            raise sqlite3.DatabaseError("the index has another layout")
        database.execute(f"CREATE TABLE IF NOT EXISTS runs ({COLUMNS}, PRIMARY KEY (run_id))")
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database
