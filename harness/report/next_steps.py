"""The commands to type next. Pure."""

from collections.abc import Collection, Mapping, Sequence

from harness.evidence.run_files import Explanation
from harness.evidence.verdicts.verdict import Verdict
from harness.report.choice import Tags
from harness.report.failures import Failure
from harness.report.model import Command

FIRST = Command(command="make matrix-test", why="runs the matrix on this host")


def what_next(
    best: Sequence[Verdict],
    found: Sequence[Failure],
    explanations: Mapping[str, Explanation | None],
    tags: Tags,
    cells: Collection[str],
) -> tuple[Command, ...]:
    """Return commands, the most useful first; `best` is the best verdict of each scope, GPUs first.

    `cells` are those that may be run.
    """
    if not best:
        return (FIRST,)
    steps = _towards_training(best[0], tags)
    for one in found[:1]:
        why = f"shows the evidence of the newest `{one.diagnosis}`"
        steps.append(Command(command=f".venv/bin/matrix explain {one.newest}", why=why))
        explanation = explanations.get(one.newest)
        remedies = [f"{one.stack}-{preset}" for preset in explanation.presets] if explanation else []
        for remedy in [cell for cell in remedies if cell in cells and cell not in one.cells][:1]:
            steps.append(Command(command=f".venv/bin/matrix run {remedy}", why="tries a preset that may help"))
    return tuple(steps)


def _towards_training(best: Verdict, tags: Tags) -> list[Command]:
    if best.tier != "known-good":
        until = ".venv/bin/matrix run --until known-good"
        return [Command(command=until, why="searches for one known-good cell with as few runs as possible")]
    train, why = "make train DATA=merged.csv OUTPUT=TRAINING", "trains on your bars, to the end"
    if (best.cell, best.environment_hash, best.scope) in tags:
        return [Command(command=train, why=why)]
    if best.executor == "docker" and best.qualifies_for_promotion:
        promote = f".venv/bin/matrix promote {best.cell}"
        return [
            Command(command=promote, why="gives its image the tag that training uses"),
            Command(command=train, why=why),
        ]
    return [Command(command=f"{train} CELL={best.cell}", why=why)]
