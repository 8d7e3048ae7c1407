"""Warnings against conclusions that the records do not support. Pure."""

from collections.abc import Sequence

from harness.base.wording import many
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import runs_in_words
from harness.matrix.cells import Matrix
from harness.report.words import names


def cautions(rows: Sequence[Row], verdicts: Sequence[Verdict], counts: Counts, matrix: Matrix) -> tuple[str, ...]:
    """Return warnings, the most serious first; `rows` are all runs, including those that cannot be evidence."""
    said = []
    counted = [row for row in rows if row.can_be_evidence]
    on_gpus = [row for row in counted if row.device != "cpu" and not is_simulated_scope(row.scope)]
    if rows and not any(row.outcome == "completed" for row in on_gpus):
        used = "completed on" if on_gpus else "used"
        said.append(f"No run {used} a GPU. The runs that completed say nothing about any GPU or ROCm version.")
    if simulated := sum(is_simulated_scope(row.scope) for row in counted):
        were = "was" if simulated == 1 else "were"
        said.append(f"{many(simulated, 'run')} {were} made on a simulated host, and say nothing about a real one.")
    if own := sum(row.own_program for row in counted):
        said.append(
            f"{many(own, 'run')} of programs of the user's own: numbers not checked, and nothing is promoted by them."
        )
    if unverified := sum(row.is_unverified for row in counted):
        were = "was" if unverified == 1 else "were"
        said.append(
            f"{many(unverified, 'run')} {were} not verified by the host, because it had no environment for that, the "
            "run had another app, or verifying took too much: each completed run says so, and qualifies for nothing."
        )
    if any(verdict.stale and not verdict.changed for verdict in verdicts):
        said.append("Runs marked stale were made with an environment that has changed since; they are not counted.")
    for changed in dict.fromkeys(verdict.changed for verdict in verdicts if verdict.changed):
        cells = dict.fromkeys(verdict.cell for verdict in verdicts if verdict.changed == changed)
        said.append(f"Runs of {names(list(cells))} from before their host changed are stale: {', '.join(changed)}.")
    stacks = [matrix.stacks[name] for name in {row.stack for row in counted} if name in matrix.stacks]
    pairs = {(stack.rocm, stack.torch) for stack in stacks if stack.rocm}
    if len({rocm for rocm, _ in pairs}) > 1 and len({torch for _, torch in pairs}) > 1:
        said.append(
            "Between these stacks ROCm and torch change together: a difference cannot be attributed to one of them. "
            "The selection `neighbours` changes one at a time."
        )
    injected = [row for row in rows if row.injected_fault is not None]
    faults = sum(counts[row.run_id].gpu_fault for row in counted)
    struck = [row for row in counted if row.struck is not None]
    if injected:
        said.append(f"{runs_in_words(injected)} with a fault injected on purpose: shown among the runs, not counted.")
    if rehearsed := sum(row.rehearsal for row in rows):
        said.append(f"{many(rehearsed, 'run')} only rehearsed how a run is made: no evidence, and not counted.")
    if faults:
        said.append(
            f"A GPU was reset, or found unhealthy, after {many(faults, 'run')}: each of them counts as failed, "
            "also where it had completed."
        )
    said += [f"Run {row.run_id} was struck out by hand, and does not count: {row.struck}." for row in struck]
    if imported := sum(row.imported for row in counted):
        was = "was" if imported == 1 else "were"
        said.append(f"{many(imported, 'run')} {was} imported from other hosts; the filter below leaves them out.")
    return tuple(said)
