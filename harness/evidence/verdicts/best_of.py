"""The number of cells that a verdict may be the best of, and the confidence that its promotion then takes. Pure."""

from collections.abc import Iterable

from harness.evidence.verdicts.verdict import Verdict


def tried(verdicts: Iterable[Verdict], family: str, executor: str) -> set[tuple[str, str]]:
    """Return the cells, each with its scope, that had runs of a workload family with this executor."""
    return {(one.cell, one.scope) for one in verdicts if one.runs and (one.family, one.executor) == (family, executor)}


def confidence_of_best(confidence: float, among: int) -> float:
    """Return the confidence that each bound of the best of `among` takes (Bonferroni).

    The best of several looks better than it is.
    """
    return 1 - (1 - confidence) / among
