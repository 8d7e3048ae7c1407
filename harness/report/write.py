"""Write the report files of a results folder."""

import time
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.base.sysfs import REAL_ROOT, is_simulated
from harness.base.text import printable
from harness.campaign.answered import LastAnswer, last_answer
from harness.environments.environment_hashes import current_hashes
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.host_state import settings_of
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import counts_of
from harness.matrix.cells import Matrix
from harness.registry.tags.promotions import read_moves, standing_tags
from harness.report.build import build_report
from harness.report.continuation import continuation
from harness.report.invocation import AS_MADE, Invocation
from harness.report.junit import to_junit
from harness.report.markdown import to_markdown
from harness.report.model import Report
from harness.report.page import to_html
from harness.report.reader import Reader


@dataclass(frozen=True)
class BuiltReport:
    """A report on a results folder, and the error messages of records that could not be read."""

    report: Report
    damaged: tuple[str, ...]

    def write(self, results: Results) -> tuple[Path, ...]:
        """Write the report as HTML, Markdown, JSON and JUnit XML.

        Raises:
            UserError: when the folder cannot be written.
        """
        texts = {"report.html": to_html, "report.md": to_markdown, "report.json": _to_json, "report.xml": to_junit}
        # One after the other, because each has some megabytes.
        for name, text in texts.items():
            write_durably(results.folder / name, printable(text(self.report)).encode())
        return tuple(results.folder / name for name in texts)


def _to_json(report: Report) -> str:
    return report.model_dump_json(by_alias=True) + "\n"


def built_report(
    results: Results,
    matrix: Matrix,
    root: Path = REAL_ROOT,
    invocation: Invocation = AS_MADE,
    answer: LastAnswer | None = None,
) -> BuiltReport:
    """Return the report; the recommended cell and the commands are for the host at `root`.

    `answer`: the answer of the last campaign; None to read it from the results.
    """
    rows = Index(results).rows()
    current = current_hashes(matrix, {(row.cell, row.executor) for row in rows})
    damaged = _unreadable(results, {row.run_id for row in rows})
    try:
        promoted = list(standing_tags(read_moves(results)).values())
    except UserError as error:
        # Without the tags the rest of the report is still worth writing.
        promoted = []
        damaged.append(str(error))
    counts = counts_of(results, rows)
    host = host_of(results, root)
    if answer is None:
        answer = last_answer(results, host.machine, rows)
        answer = replace(answer, next_command=continuation(results, host.machine, invocation, rows, answer))
    report = build_report(
        results,
        rows,
        matrix,
        current,
        counts,
        Reader(time.time(), host.kind, invocation, answer),
        promoted,
        settings_of(host),
    )
    if is_simulated(root):
        # Otherwise what is read first would pass for an answer about this machine.
        of_it = report.answer.model_copy(update={"sentence": f"On a simulated host: {report.answer.sentence}"})
        report = report.model_copy(update={"answer": of_it})
    return BuiltReport(report, (*damaged, *report.code.unreadable))


def _unreadable(results: Results, indexed: Set[str]) -> list[str]:
    """Return the errors of the records that are missing from the index because they cannot be read."""
    damaged = []
    for run_id in sorted(set(results.finished()) - indexed):
        try:
            if record := results.record(run_id):
                Index(results).row_of(record)
        except UserError as error:
            damaged.append(str(error))
    return damaged
