"""What must not be concluded from the records. Pure."""

from collections.abc import Collection, Sequence

from harness.evidence.index import Row
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict
from harness.matrix.cells import Matrix
from harness.report.words import many


def cautions(
    rows: Sequence[Row], verdicts: Sequence[Verdict], discounted: Collection[str], matrix: Matrix
) -> tuple[str, ...]:
    """Sentences, the gravest first; `rows` are all runs, drills among them."""
    said = []
    counted = [row for row in rows if row.injected_fault is None]
    on_gpus = [row for row in counted if row.device != "cpu" and not is_simulated_scope(row.scope)]
    if not any(row.outcome == "completed" for row in on_gpus):
        used = "completed on" if on_gpus else "used"
        said.append(f"No run {used} a GPU. What completed here says nothing about any GPU or any ROCm version.")
    if simulated := sum(is_simulated_scope(row.scope) for row in counted):
        were = "was" if simulated == 1 else "were"
        said.append(f"{many(simulated, 'run')} {were} made on a simulated host, and say nothing about a real one.")
    if any(verdict.stale for verdict in verdicts):
        said.append("Runs marked stale were made with an environment that has changed since; they are not counted.")
    stacks = [matrix.stacks[name] for name in {row.stack for row in counted} if name in matrix.stacks]
    pairs = {(stack.rocm, stack.torch) for stack in stacks if stack.rocm}
    if len({rocm for rocm, _ in pairs}) > 1 and len({torch for _, torch in pairs}) > 1:
        said.append(
            "Between these stacks ROCm and torch change together: a difference cannot be attributed to one of them. "
            "The selection `neighbours` changes one at a time."
        )
    drills, unhealthy = len(rows) - len(counted), sum(row.run_id in discounted for row in counted)
    if drills:
        told = "1 run was a drill" if drills == 1 else f"{drills} runs were drills"
        said.append(f"{told}, with a fault injected on purpose; shown among the runs, and not counted.")
    if unhealthy:
        told = "1 run is" if unhealthy == 1 else f"{unhealthy} runs are"
        said.append(f"{told} discounted: a GPU was unhealthy meanwhile; shown among the runs, and not counted.")
    if imported := sum(row.imported for row in counted):
        was = "was" if imported == 1 else "were"
        said.append(f"{many(imported, 'run')} {was} made elsewhere and imported; they can be left out below.")
    return tuple(said)
