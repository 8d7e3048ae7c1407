"""The user's own criteria: which of them are met, and by which run. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.base.durations import span
from harness.base.wording import many
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import workload_hash
from harness.matrix.workloads import Workload

CRITERIA = ("immediate", "full", "production")
# Options that may differ, because they change how a result is computed and not which result.
MAY_DIFFER = ("lookback", "strategy", "vpoc_path", "sdpa")
ReadRecord = Callable[[str], Record | None]


@dataclass(frozen=True)
class Criterion:
    """A criterion of the notes: `met`, `not met` or `not tried`, and a sentence with the run that shows it."""

    name: str
    state: Literal["met", "not met", "not tried"]
    sentence: str


def which_criteria_are_met(
    matrix: Matrix, rows: Sequence[Row], counts: Counts, read: ReadRecord
) -> tuple[Criterion, ...]:
    """Return each criterion; `read` returns the record of a run. Only runs on GPUs can meet one."""
    workloads = [matrix.workloads[name] for name in CRITERIA if name in matrix.workloads]
    counted = [row for row in rows if counts[row.run_id].counts]
    return tuple(
        Criterion(
            workload.name, *_told(workload, [row for row in counted if row.workload == workload.name], counts, read)
        )
        for workload in workloads
    )


def states_in_words(criteria: Sequence[Criterion]) -> str:
    """Return the states of the criteria as a clause; empty if none was tried on a GPU."""
    if all(one.state == "not tried" for one in criteria):
        return ""
    return f"of the criteria {', '.join(f'`{one.name}` is {one.state}' for one in criteria)}"


def _told(
    workload: Workload, rows: Sequence[Row], counts: Counts, read: ReadRecord
) -> tuple[Literal["met", "not met", "not tried"], str]:
    named = f"`{workload.name}` ({workload.description})"
    one_of_each = {row.workload_hash: row.run_id for row in rows}
    same = {hash_ for hash_, run_id in one_of_each.items() if _as_defined(workload, read(run_id))}
    tried = [row for row in rows if row.workload_hash in same]
    completed = [row for row in tried if counts[row.run_id].counts_as == "passed" and not row.is_unverified]
    # If several runs meet the criterion, name the newest of this host.
    completed.sort(key=lambda row: (row.device != "cpu", not row.imported, row.started))
    record = read(completed[-1].run_id) if completed else None
    if record is not None:
        row = completed[-1]
        by = f"by `{row.cell}` in {span(row.seconds)}, run `{row.run_id}`, on {_data(record)}"
        if row.device == "cpu":
            return "not tried", f"{named}: completed on a CPU only, {by}; not shown on a GPU."
        return "met", f"{named}: met on `{row.scope}` {by}{' (imported)' if row.imported else ''}."
    if tried:
        unverified = " and was verified" if any(row.is_unverified for row in tried) else ""
        state: Literal["not met", "not tried"] = "not met" if any(row.device != "cpu" for row in tried) else "not tried"
        return state, f"{named}: not met; {many(len(tried), 'run')}, none completed{unverified}."
    older = " as it is defined now" if rows else ""
    runs = f"on a host with GPUs `matrix run --workload {workload.name}` runs it"
    return "not tried", f"{named}: not tried{older}; {runs}."


def _as_defined(workload: Workload, record: Record | None) -> bool:
    """Return whether a run trained what the matrix file defines, with any number of lookback sessions.

    The strategy may differ, but a workload for several devices must have run on several.
    """
    if record is None:
        return False
    options = record.intent.options
    changed = {name: options.get(name, getattr(workload, name)) for name in MAY_DIFFER}
    if workload.strategy != "single" and changed["strategy"] == "single":
        return False
    asked = workload.model_copy(update={**changed, "backend": options.get("backend")})
    return record.intent.workload_hash == workload_hash(asked, record.intent.data.sha256)


def _data(record: Record) -> str:
    data = record.intent.data
    return "synthetic bars" if data.is_synthetic else f"`{Path(data.path).name}`"
