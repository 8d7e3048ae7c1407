"""`matrix export`: writes the finished runs of a results folder to one file, without names and paths."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.validation_errors import first_problem
from harness.base.wording import many
from harness.evidence.files.app_files import MOST_OPTIONS_BYTES
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import read_steps
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.host.facts import HostFacts
from harness.registry.share.anonymise import shared_step
from harness.registry.share.archive import HEALTH, LARGEST_INTENT, LARGEST_RUN, MOST_OF_RUN, RUNS, write_archive
from harness.registry.share.names import read_scrubber
from harness.registry.share.scrub import Scrubber
from harness.registry.share.shared_files import content_hash, imported_files, shared_files
from harness.registry.share.shared_ids import shared_id


@dataclass(frozen=True)
class Exported:
    """A written archive: its number of runs, and the reasons for runs that were left out."""

    file: Path
    sha256: str
    runs: int
    left_out: tuple[str, ...]


def export_records(
    results: Results,
    file: Path,
    host: HostFacts,
    hide: tuple[str, ...] = (),
    show: Callable[[Sequence[Row]], Iterable[Row]] = iter,
    *,
    cells: Collection[str] = (),
    force: bool = False,
) -> Exported:
    """Write the finished runs into `file`; if any `cells` are given, only theirs.

    Three kinds of runs are left out: rehearsals; runs of the user's own programs, whose source, data and variables
    cannot be told from secrets; and runs that other hosts made in this folder, because only those hosts know the names
    to remove.

    - `hide`: names to remove besides those of this host; if any are given, runs of other hosts are included.
    - `show`: wraps the iteration over rows, to display progress.
    - `force`: replace an existing file.

    Raises:
        UserError: when there is nothing to write, or the file exists or cannot be written.
    """
    rows = [row for row in Index(results).rows() if not cells or row.cell in cells]
    # If none of the cells was run, the error below says so.
    run = {row.cell for row in rows}
    left_out = [f"{cell}: no finished run" for cell in cells if run and cell not in run]
    if rehearsed := sum(row.rehearsal for row in rows):
        left_out.append(f"{many(rehearsed, 'rehearsal')}: no evidence")
    rows = [row for row in rows if not row.rehearsal]
    if own := sum(row.own_program for row in rows):
        left_out.append(f"{many(own, 'run')} of programs of your own: what they are and set is private")
    rows = [row for row in rows if not row.own_program]
    known = shareable(rows, host.machine, hide)
    if others := len(rows) - len(known):
        left_out.append(f"{many(others, 'run')} of other hosts: export them there, or name those hosts with --hide")
    if not known:
        of_cells = f" of {', '.join(cells)}" if cells else ""
        reasons = "".join(f"; {reason}" for reason in left_out)
        raise UserError(f"{results.runs}: no finished run{of_cells} to export{reasons}")
    scrubber = read_scrubber(results.folder, hide)
    taken: list[Row] = []

    def runs() -> Iterator[tuple[str, bytes]]:
        for row in show(sorted(known, key=_id)):
            try:
                files = _files(results, row, scrubber)
            except (UserError, OSError) as error:
                left_out.append(str(error))
                continue
            taken.append(row)
            name = content_hash(files)
            yield from ((f"{RUNS}/{name}/{part}", content) for part, content in sorted(files.items()))

    write_archive(file, chain(runs(), _health(results, taken, scrubber)), force=force)
    return Exported(file, file_hash(file), len(taken), tuple(left_out))


def shareable(rows: Iterable[Row], machine: str, hide: tuple[str, ...]) -> list[Row]:
    """Return the rows of runs that this machine may export; runs of other hosts only if there are names to hide."""
    known = (row for row in rows if row.imported or row.machine == machine or hide)
    return [row for row in known if not (row.rehearsal or row.own_program)]


def _id(row: Row) -> str:
    return row.run_id if row.imported else shared_id(row.machine, row.run_id)


def _files(results: Results, row: Row, scrubber: Scrubber) -> dict[str, bytes]:
    """Return the files of a run for export.

    Raises:
        UserError: when no import would take them.
    """
    folder = results.folder_of(row.run_id)
    files = imported_files(folder) if row.imported else _own_files(results.record(row.run_id), folder, scrubber)
    if len(files) > MOST_OF_RUN:
        raise UserError(f"{folder.path}: has more than {MOST_OF_RUN:,} files to export")
    if sum(map(len, files.values())) > LARGEST_RUN:
        raise UserError(f"{folder.path}: has more than {LARGEST_RUN:,} bytes to export")
    if row.is_too_large or len(files.get(RunFolder.INTENT, b"")) > LARGEST_INTENT:
        raise UserError(f"{folder.path}: it names more than any import takes")
    return files


def _own_files(record: Record | None, folder: RunFolder, scrubber: Scrubber) -> dict[str, bytes]:
    if record is None:
        raise UserError(f"{folder.path}: its record was removed")
    files = shared_files(record, folder, scrubber)
    # What stands for a path may be longer than the path. No record of a real run is as large as such options.
    if len(files[RunFolder.RECORD]) > MOST_OPTIONS_BYTES:
        try:
            Record.parse(files[RunFolder.RECORD])
        except ValidationError as error:
            raise UserError(f"{folder.path}: no import takes it without its paths: {first_problem(error)}") from None
    return files


def _health(results: Results, taken: Iterable[Row], scrubber: Scrubber) -> Iterator[tuple[str, bytes]]:
    """Yield the health logs of the machines of these runs, which tell after which runs a GPU was unhealthy."""
    imported = {row.machine: row.imported for row in taken}
    lines: dict[str, set[str]] = {}
    for step in read_steps(results):
        if step.machine in imported:
            shared = step if imported[step.machine] else shared_step(step, scrubber)
            lines.setdefault(shared.machine, set()).add(health_line(shared))
    for machine, of_machine in sorted(lines.items()):
        yield f"{HEALTH}/{machine}.jsonl", "".join(f"{line}\n" for line in sorted(of_machine)).encode()


def health_line(step: HealthStep) -> str:
    """Return a step as a line; equal steps give equal lines."""
    return step.model_dump_json(by_alias=True)
