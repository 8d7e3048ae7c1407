"""The expectation for a training of so many hours in its cell, in words: by its tag, or by records of this host."""

from harness.evidence.records import Results
from harness.evidence.verdicts.expectation import Expectation, expectation_of, expectation_of_totals
from harness.evidence.verdicts.of_results import verdicts
from harness.evidence.verdicts.scope import is_of_strategy
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import work_in_words
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.strategies import Strategy
from harness.registry.tags.promotions import KnownGood

# Length assumed for a training if the user gives none, in hours.
USUAL_HOURS = 10.0


def expect_of_tag(evidence: KnownGood, hours: float) -> Expectation | None:
    """Return what a training can expect by the evidence of its tag; None for an old tag without hours."""
    if evidence.hours is None or evidence.failures is None:
        return None
    return expectation_of(
        hours,
        evidence.failures,
        evidence.incidents or 0,
        evidence.hours,
        evidence.longest_hours or 0.0,
        1 - (1 - evidence.confidence) / evidence.among,
        evidence.restart_seconds,
    )


def expect_of_cell(
    cell: str, strategy: Strategy, matrix: Matrix, results: Results, host: HostFacts, hours: float
) -> tuple[Expectation, Verdict] | None:
    """Return what a training can expect by the runs of a cell on this kind of host, and the verdict on these runs.

    Among the verdicts of this strategy it is the one with the most hours; None if nothing was trained.
    """
    known = [one for one in verdicts(results, matrix, host) if (one.cell, one.host_kind) == (cell, host.kind)]
    usable = [one for one in known if not one.stale and one.totals.hours and is_of_strategy(one.scope, strategy)]
    best = max(usable, key=lambda one: one.totals.hours, default=None)
    if best is None:
        return None
    return expectation_of_totals(best.totals, hours, matrix.verdicts.confidence), best


def expectation_in_words(
    evidence: KnownGood | None,
    cell: str,
    strategy: Strategy,
    matrix: Matrix,
    results: Results,
    host: HostFacts,
    hours: float,
) -> str:
    """Return what a training can expect, and which evidence says so, as one line."""
    if evidence and (told := expect_of_tag(evidence, hours)):
        return f"{told.in_words} (by {evidence.tag}, workload {evidence.workload})"
    if found := expect_of_cell(cell, strategy, matrix, results, host, hours):
        told, verdict = found
        return f"{told.in_words} (by its runs here, workload {work_in_words(verdict)})"
    return f"nothing is known of how long {cell} lasts here; `matrix run {cell} --until known-good` finds out"
