"""The runs of a results folder together with the verdicts on them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.report.sections.criteria import ReadRecord


@dataclass(frozen=True)
class JudgedRuns:
    """The runs of a results folder in the order of time, and the verdicts on them.

    `counts`: as in `judge`.
    `own`: the verdicts without imported runs.
    `read`: returns the record of a run, None for one that cannot be read.
    """

    rows: Sequence[Row]
    matrix: Matrix
    counts: Counts
    read: ReadRecord
    verdicts: Sequence[Verdict]
    own: Sequence[Verdict]


def judged_runs(
    rows: Sequence[Row],
    matrix: Matrix,
    counts: Counts,
    read: ReadRecord,
    verdicts: Sequence[Verdict],
    judge: Callable[[Sequence[Row]], Sequence[Verdict]],
) -> JudgedRuns:
    """Return runs with the verdicts on them; `judge` is called for those without imported runs, if there are any."""
    made_here = [row for row in rows if not row.imported]
    own = judge(made_here) if len(made_here) < len(rows) else verdicts
    return JudgedRuns(rows, matrix, counts, read, verdicts, own)
