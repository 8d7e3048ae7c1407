"""Counts runs by node of a cluster, and finds a node that fails more often than the others. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts

# Probability of naming a node by chance, whichever node it is: the same as for verdicts.
CHANCE = 0.05


@dataclass(frozen=True)
class NodeRuns:
    """The runs of a node that count, and those of the other nodes of its kind.

    `ran_on`: what the last run on the node used.
    `unlike_others`: whether the node fails more often than the others, beyond chance.
    """

    host_kind: str
    node: str
    ran_on: str
    runs: int
    failures: int
    runs_of_others: int = 0
    failures_of_others: int = 0
    unlike_others: bool = False

    @property
    def in_words(self) -> str:
        """The comparison, as a sentence."""
        others = f"{self.failures_of_others} of {self.runs_of_others} on the others of its kind"
        return f"{self.node} does it: {self.failures} of its {self.runs} runs failed, and {others}"


def by_node(rows: Iterable[Row], counts: Counts) -> list[NodeRuns]:
    """Return the counts of runs by host kind and node; runs without a node were not made on a cluster."""
    counted = [row for row in rows if row.node and counts[row.run_id].counts]
    runs = Counter((row.host_kind, row.node or "") for row in counted)
    failed = Counter((row.host_kind, row.node or "") for row in counted if counts[row.run_id].counts_as == "failed")
    ran_on = {(row.host_kind, row.node): row.ran_on for row in sorted(counted, key=lambda row: row.started)}
    found = []
    for (kind, node), count in sorted(runs.items()):
        others = [one for one in runs if one[0] == kind and one[1] != node]
        one = NodeRuns(
            kind,
            node,
            ran_on[kind, node],
            count,
            failed[kind, node],
            sum(runs[other] for other in others),
            sum(failed[other] for other in others),
        )
        found.append(replace(one, unlike_others=_is_unlike(one, len(others) + 1)))
    return found


def worst_node(rows: Iterable[Row], cell: str) -> str | None:
    """Return the node on which a cell failed most often; None where it failed on none."""
    failed = Counter(row.node for row in rows if row.node and row.cell == cell and row.outcome != "completed")
    return min(failed, key=lambda node: (-failed[node], node)) if failed else None


def _is_unlike(one: NodeRuns, nodes: int) -> bool:
    """Return whether one of `nodes` nodes fails more often than the others together, by Fisher's exact test."""
    if not one.failures or not one.runs_of_others:
        return False
    # Imported here, because otherwise every command would wait for it.
    from scipy.stats import hypergeom  # noqa: PLC0415

    runs, failures = one.runs + one.runs_of_others, one.failures + one.failures_of_others
    return bool(hypergeom.sf(one.failures - 1, runs, failures, one.runs) < CHANCE / nodes)
