"""`matrix import`: adds the runs that another results folder exported. Existing runs are not changed."""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from pydantic import Field, ValidationError

from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.hashes import file_hash
from harness.base.files.json_files import Versioned
from harness.base.files.json_lines import LARGEST_LINE
from harness.base.files.locks import SHORT_LOCK_SECONDS, locked
from harness.base.files.storage import (
    AnotherUsersError,
    group_writable_umask,
    make_folder_durably,
    read_regular,
    sync_folder,
    unfinished,
    write_pieces_durably,
)
from harness.base.files.tree_removal import empty, opened_folder
from harness.base.validation_errors import headline
from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.files.run_folder import LARGEST_OWN_BYTES, RunFolder
from harness.evidence.gpus.health_log import health_file, read_steps
from harness.evidence.index import Index
from harness.evidence.records import CLOSED, Results
from harness.evidence.row import Row
from harness.host.facts import HostFacts
from harness.registry.share.archive import HEALTH, LARGEST_INTENT, RUNS, unpack
from harness.registry.share.exports import health_line
from harness.registry.share.shared_ids import is_hashed, is_shared_id, shared_id

LOCK = ".import.lock"
# Seconds since 1970: the year 5138. Not every platform can show later dates.
LATEST = 1e11
# Seconds by which a clock may be set during a run, and by which the clocks of hosts may differ.
SET_CLOCK_SECONDS, CLOCKS_APART_SECONDS = 300.0, 86_400.0
# Longest text that names a run, in characters, because names of some megabytes would take a minute to show.
LONGEST_TEXT = 4096
SELECT = f"SELECT {', '.join('?' * len(Row._fields))}"
LONGEST_RUN_SECONDS = 366 * 86_400.0

Unpacked = Iterable[tuple[str, str]]


class Origin(Versioned):
    """`imported.json`: marks a run as imported, with its origin."""

    archive_sha256: str
    content_sha256: str = Field(description="over the names and contents of its other files")
    imported: float = Field(description="seconds since 1970")


@dataclass(frozen=True)
class Imported:
    """The result of an import: the new runs, the number of runs already here, and the runs that differ.

    Runs that differ are already here with another content, which is not changed.
    """

    file: Path
    sha256: str
    runs: tuple[str, ...]
    duplicates: int
    differing: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    folder: Path
    content: str
    id: str
    machine: str


def import_records(
    results: Results, file: Path, host: HostFacts, show: Callable[[Unpacked], Unpacked] = iter
) -> Imported:
    """Import an archive, each run completely or not at all; repeating that, also after a crash, adds what is missing.

    Raises:
        UserError: when the archive is damaged or holds anything but records; then nothing is imported.
    """
    if not file.is_file():
        why = "is not a file" if file.exists() else "no such file"
        raise NoSuchFileError(f"{file}: {why}; give one that `matrix export` wrote")
    make_folder_durably(results.runs, protect=True)
    with (
        locked(results.folder / LOCK, seconds=SHORT_LOCK_SECONDS),
        group_writable_umask(results.folder),
        _private_folder(unfinished(results.folder / "import")) as place,
    ):
        return _take_in(results, file, place, show(unpack(file, place)), host)


@contextmanager
def _private_folder(place: Path) -> Iterator[Path]:
    """Make a folder that only this user may enter; yield a path to it that holds wherever it is moved.

    Other users of a shared results folder may put a link, or a folder of theirs, in its place.
    """
    place.mkdir(mode=CLOSED)
    try:
        with opened_folder(place) as opened:
            if os.fstat(opened).st_uid != os.geteuid():
                raise AnotherUsersError(errno.EPERM, "is another user's", str(place))
            try:
                yield Path(f"/proc/self/fd/{opened}")
            finally:
                with suppress(OSError):
                    empty(opened)
    finally:
        with suppress(OSError):
            place.rmdir()


def _take_in(
    results: Results,
    file: Path,
    place: Path,
    contents: Unpacked,
    host: HostFacts,
) -> Imported:
    rows = Index(results).rows()
    made_here = [row for row in rows if not row.imported]
    machines = {host.machine, *(row.machine for row in made_here)}
    # An index in memory, to check that an index can hold the values of the runs.
    with closing(sqlite3.connect(":memory:")) as database:
        checked = partial(_checked, file=file, machines=machines, database=database)
        runs = [checked(place / RUNS / name, content) for name, content in contents]
    told = _folders(place / HEALTH)
    for health in told:
        for _ in _steps(health, file, machines):
            pass
    own = {shared_id(row.machine, row.run_id) for row in made_here}
    here = {run.id: _content_here(results, run.id) for run in runs if results.run_folder(run.id).exists()}
    if len({run.id for run in runs}) < len(runs):
        raise UserError(f"{file}: holds two runs of one id; nothing was imported")
    new = [run for run in runs if run.id not in own and run.id not in here]
    sha256 = file_hash(file)
    for run in new:
        origin = Origin(archive_sha256=sha256, content_sha256=run.content, imported=time.time())
        mark = RunFolder(run.folder).imported
        mark.write_bytes(origin.model_dump_json(indent=2, by_alias=True).encode() + b"\n")
    # Write all files of all runs to the disk before any run gets its name in the results folder.
    os.sync()
    for run in new:
        run.folder.rename(results.run_folder(run.id))
    sync_folder(results.runs)
    abroad = {row.machine for row in rows if row.imported} | {run.machine for run in new}
    for health in told:
        if health.stem in abroad:
            _merge_health(results, health.stem, _steps(health, file, machines))
    differing = tuple(run.id for run in runs if run.id in here and here[run.id] != run.content)
    return Imported(file, sha256, tuple(run.id for run in new), len(runs) - len(new) - len(differing), differing)


def _folders(place: Path) -> list[Path]:
    return sorted(place.iterdir()) if place.is_dir() else []


def _checked(
    folder: Path, content_hash: str, file: Path, machines: Collection[str], database: sqlite3.Connection
) -> _Run:
    """Return an unpacked run whose content matches its name, and whose machine is none of this folder's `machines`.

    Raises:
        UserError: when the run is invalid.
    """
    try:
        intent = Intent.parse(read_regular(RunFolder(folder).intent, LARGEST_INTENT))
        record = Record.parse(read_regular(RunFolder(folder).record, LARGEST_OWN_BYTES))
    except (OSError, ValidationError) as error:
        # The path of a file here is no name that anybody knows.
        why = f"{Path(error.filename).name}: {error.strerror}" if isinstance(error, OSError) else headline(error)
        raise UserError(f"{file}: {folder.name}: is not a run: {why}; nothing was imported") from None
    wrong = None
    if content_hash != folder.name:
        wrong = "its content does not match the hash in its name"
    elif record.intent != intent:
        wrong = "its record belongs to another intent"
    elif intent.host.machine in machines:
        wrong = "claims to be a run of a machine that runs cells in this folder"
    elif not _storable(record, database):
        wrong = "holds impossible values"
    elif not all(is_shared_id(name) for name in (intent.run_id, intent.campaign) if name is not None):
        wrong = f"has an id that no export writes: {intent.run_id[:130]!r}"
    if wrong:
        raise UserError(f"{file}: {folder.name}: {wrong}; nothing was imported")
    return _Run(folder, folder.name, intent.run_id, intent.host.machine)


def _storable(record: Record, database: sqlite3.Connection) -> bool:
    """Return whether the index and the report can hold the values of a record, which its types do not limit."""
    row = Row.of(record)
    times = (row.started, row.finished, row.seconds)
    try:
        database.execute(SELECT, row)
    except (OverflowError, TypeError, ValueError, AttributeError, sqlite3.Error):
        return False
    names = (record.intent.host.machine, record.intent.host.boot_id)
    if row.is_too_large or any(len(text) > LONGEST_TEXT for text in _texts(record)):
        return False
    return all(0 <= moment < LATEST for moment in times) and _has_possible_times(record) and all(map(is_hashed, names))


def _texts(record: Record) -> Iterator[str]:
    """Yield the texts that name a run in tables and in the report."""
    for part in (record.intent, record.intent.host, record):
        yield from (value for _, value in part if isinstance(value, str))


def _has_possible_times(record: Record) -> bool:
    """Return whether a run is over and no duration in it exceeds that of the run, given that clocks may be set."""
    started, finished = record.intent.started, record.finished
    most = finished - started + SET_CLOCK_SECONDS
    lasted = [record.seconds, *record.longest_stall.values()]
    lasted += [seconds for seconds in (record.exposure_seconds, record.idle_seconds) if seconds is not None]
    over = started <= finished <= min(started + LONGEST_RUN_SECONDS, time.time() + CLOCKS_APART_SECONDS)
    return over and all(0 <= one <= most for one in lasted)


def _content_here(results: Results, run_id: str) -> str | None:
    """Return the content hash of an imported run; None if its `imported.json` is damaged."""
    try:
        return Origin.parse(read_regular(results.folder_of(run_id).imported)).content_sha256
    except (OSError, ValidationError):
        return None


def _steps(health: Path, file: Path, machines: Collection[str]) -> Iterator[HealthStep]:
    """Yield the steps of a machine one by one, because hundreds of thousands take a gigabyte of memory."""
    with health.open("rb") as lines:
        while line := lines.readline(LARGEST_LINE):
            try:
                step = HealthStep.parse(line)
            except ValidationError as error:
                problem = headline(error)
                raise UserError(
                    f"{file}: {HEALTH}/{health.name}: is damaged: {problem}; nothing was imported"
                ) from None
            if step.machine != health.stem or step.machine in machines:
                raise UserError(f"{file}: {HEALTH}/{health.name}: is of another machine; nothing was imported")
            if not (0 <= step.at < LATEST and 0 <= step.seconds < LATEST):
                raise UserError(f"{file}: {HEALTH}/{health.name}: holds impossible times; nothing was imported")
            yield step


def _merge_health(results: Results, machine: str, steps: Iterable[HealthStep]) -> None:
    """Add the missing steps to the health log of a machine that has only imported runs here."""
    lines = {health_line(step).encode() + b"\n" for step in chain(steps, read_steps(results, machine))}
    write_pieces_durably(health_file(results, machine), sorted(lines))
