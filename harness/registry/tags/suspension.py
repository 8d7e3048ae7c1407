"""Finds why a known-good tag is suspended, from later runs of its image. Pure, except where it reads the records."""

from collections.abc import Callable, Iterable, Sequence

from harness.base.durations import day_of
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts, counts_of
from harness.evidence.verdicts.of_results import verdicts_on
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.registry.tags.promote import why_fallen
from harness.registry.tags.promotions import KnownGood

Suspension = Callable[[KnownGood], str | None]
"""Returns why a tag is suspended, in one line; None if it is not."""


def suspension_by(results: Results, matrix: Matrix) -> Suspension:
    """Return a function that says why the records of a results folder suspend a tag."""
    rows = Index(results).rows()
    counts = counts_of(results, rows)
    verdicts = verdicts_on(rows, matrix, counts)
    return lambda evidence: why_suspended(evidence, rows, counts, verdicts)


def why_suspended(evidence: KnownGood, rows: Iterable[Row], counts: Counts, verdicts: Iterable[Verdict]) -> str | None:
    """Return why a tag is suspended, in one line; None if it is not.

    A tag is suspended if, after its promotion, a run of its image reset a GPU or left one unhealthy, whatever the
    workload and also in a training of the user's, or if its verdict fell below its tier. Only a new promotion ends a
    suspension.
    """
    later = [row for row in rows if _is_later(row, evidence) and counts[row.run_id].gpu_fault]
    return _of_gpus(later, counts) or why_fallen(evidence, verdicts)


def _of_gpus(faults: Sequence[Row], counts: Counts) -> str | None:
    if not faults:
        return None
    last = max(faults, key=lambda row: row.finished)
    runs = f"run {last.run_id}" if len(faults) == 1 else f"{len(faults)} runs, the last one {last.run_id},"
    why = counts[last.run_id].why or last.detail
    return f"since its promotion {runs} ended with a GPU fault ({day_of(last.finished)}): {why}"


def _is_later(row: Row, evidence: KnownGood) -> bool:
    same = (row.cell, row.environment_hash, row.executor) == (evidence.cell, evidence.environment_hash, "docker")
    # A fault on another host only counts for that kind of host; a fault here counts whatever kind of host this is.
    # A run that began before the promotion may end after it; none of those that the tag rests on is later.
    later = row.finished > evidence.promoted_at and row.run_id not in evidence.run_ids
    return same and later and (not row.imported or row.host_kind == evidence.host_kind)
