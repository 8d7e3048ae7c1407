"""Records summed up by what they are evidence of. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from harness.index import Row

OUTCOMES = ("completed", "failed", "hung", "interrupted", "host-fault")


@dataclass(frozen=True)
class Status:
    """The runs of one cell that may be counted together: same environment, workload, kind of host and executor.

    `tainted` runs are counted apart from `outcomes` and `diagnoses`: they failed while a GPU was sick.
    """

    cell: str
    workload: str
    ran_on: str
    environment_hash: str
    workload_hash: str
    host_kind: str
    executor: str
    stale: bool
    outcomes: Mapping[str, int]
    diagnoses: Mapping[str, int]
    tainted: int
    last: str

    @property
    def runs(self) -> int:
        """How many runs there are, with those from which nothing is concluded."""
        return sum(self.outcomes.values()) + self.tainted


def summarise(
    rows: Iterable[Row], current: Mapping[tuple[str, str], str], tainted: Collection[str] = ()
) -> list[Status]:
    """One status per identity of evidence, in the order of cells.

    `current` holds the environment hash a cell would have now with an executor; where that is not known, the newest
    one counts.
    `tainted` are ids of runs from which nothing may be concluded, as `harness.taint` finds them.
    Records of another one are stale: they are shown apart and never pooled. Drills are evidence of nothing.
    """
    rows = sorted((row for row in rows if row.drill is None), key=lambda row: row.started)
    current = {**{(row.cell, row.executor): row.environment_hash for row in rows}, **current}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        identity = (row.cell, row.workload_hash, row.host_kind, row.executor, row.environment_hash)
        groups.setdefault(identity, []).append(row)
    return [_status(group, current, tainted) for _, group in sorted(groups.items())]


def _status(group: list[Row], current: Mapping[tuple[str, str], str], tainted: Collection[str]) -> Status:
    last = max(group, key=lambda row: row.started)
    telling = [row for row in group if row.run_id not in tainted]
    counted = Counter(row.outcome for row in telling)
    known = [row.ran_on for row in group if row.ran_on != "unknown"]
    return Status(
        cell=last.cell,
        workload=last.workload,
        ran_on=known[-1] if known else "unknown",
        environment_hash=last.environment_hash,
        workload_hash=last.workload_hash,
        host_kind=last.host_kind,
        executor=last.executor,
        stale=current[last.cell, last.executor] != last.environment_hash,
        outcomes={name: counted[name] for name in OUTCOMES},
        diagnoses=dict(Counter(row.diagnosis for row in telling if row.diagnosis)),
        tainted=len(group) - len(telling),
        last=last.run_id,
    )
