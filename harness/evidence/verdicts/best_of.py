"""How many a verdict may be the best of, and the confidence that its promotion is then held to. Pure."""

from collections.abc import Iterable

from harness.evidence.verdicts.verdict import Verdict


def tried(verdicts: Iterable[Verdict], family: str, executor: str) -> set[tuple[str, str]]:
    """Return the cells, each with its scope, that had runs of a workload family in that way."""
    return {(one.cell, one.scope) for one in verdicts if one.runs and (one.family, one.executor) == (family, executor)}


def confidence_of_best(confidence: float, among: int) -> float:
    """Return the confidence of each bound of the best of so many: it looks better than it is (Bonferroni)."""
    return 1 - (1 - confidence) / among
