"""Records -> verdicts: which environment trains to the end, on how many runs, and with what certainty. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.evidence.index import Row
from harness.evidence.verdicts.rates import lower_bound, upper_bound
from harness.matrix.cells import Verdicts

Tier = Literal["untested", "excluded", "failing", "flaky", "seen", "candidate", "good", "known-good"]

OUTCOMES = ("completed", "failed", "hung", "interrupted", "host-fault")
# What says something about the cell: the others are the user's doing, or the host's.
COUNTED = ("completed", "failed", "hung")
# Upper bound of the pass rate below which a cell fails whatever else it does.
FAILING = 0.5


@dataclass(frozen=True)
class Verdict:
    """The verdict on runs that may be counted together: same environment, workload, kind of host, executor and scope.

    `runs` are those that count, `passes` of them completed; the pass rate lies above `low` and, each for itself, below
    `high` with the confidence of the matrix file, also when looked at after every run. `not_counted`: by what keeps
    them from it (`interrupted`, `host-fault`, `discounted`). `outcomes` are of all but discounted runs, `diagnoses` of
    those that count, the most frequent first.
    """

    cell: str
    stack: str
    preset: str
    scope: str
    device: str
    ran_on: str
    workload: str
    workload_hash: str
    environment_hash: str
    host_kind: str
    executor: str
    qualifies_for_promotion: bool
    stale: bool
    tier: Tier
    passes: int
    runs: int
    low: float
    high: float
    outcomes: Mapping[str, int]
    diagnoses: Mapping[str, int]
    not_counted: Mapping[str, int]
    imported: int
    run_ids: tuple[str, ...]
    last: str
    last_at: float

    @property
    def diagnosis(self) -> str | None:
        """The one that most failures have."""
        return next(iter(self.diagnoses), None)


def tier_of(passes: int, runs: int, thresholds: Verdicts) -> Tier:
    """The tier that so many passes of so many runs reach. Where nothing passed it is `failing`, on few runs too."""
    if not runs:
        return "untested"
    low = lower_bound(passes, runs, thresholds.confidence)
    if passes == 0 or upper_bound(passes, runs, thresholds.confidence) < FAILING:
        return "failing"
    if low > thresholds.known_good:
        return "known-good"
    if low > thresholds.good:
        return "good"
    if passes < runs:
        return "flaky"
    return "candidate" if low > thresholds.candidate else "seen"


def judge(
    rows: Iterable[Row],
    current: Mapping[tuple[str, str], str],
    thresholds: Verdicts,
    discounted: Collection[str] = (),
) -> list[Verdict]:
    """One verdict per identity of evidence, in the order of cells.

    `current` holds the environment hash a cell would have now with an executor; where that is not known, the newest
    one counts. Records of another one are stale: they are shown apart and never pooled. Runs with an injected fault do
    not count.
    `discounted` are ids of runs from which nothing may be concluded, as `harness.evidence.discounted_runs` finds them.
    """
    rows = sorted((row for row in rows if row.injected_fault is None), key=lambda row: (row.started, row.run_id))
    # What was made elsewhere says nothing about what a cell would be here.
    newest = {(row.cell, row.executor): row.environment_hash for row in sorted(rows, key=lambda row: not row.imported)}
    current = {**newest, **current}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        identity = (row.cell, row.workload_hash, row.host_kind, row.executor, row.environment_hash, row.scope)
        groups.setdefault(identity, []).append(row)
    return [_verdict(group, current, thresholds, discounted) for _, group in sorted(groups.items())]


def _verdict(
    group: list[Row], current: Mapping[tuple[str, str], str], thresholds: Verdicts, discounted: Collection[str]
) -> Verdict:
    last = group[-1]
    telling = [row for row in group if row.run_id not in discounted]
    outcomes = Counter(row.outcome for row in telling)
    counted = [row for row in telling if row.outcome in COUNTED]
    passes, runs = outcomes["completed"], len(counted)
    not_counted = {name: outcomes[name] for name in OUTCOMES if name not in COUNTED}
    not_counted["discounted"] = len(group) - len(telling)
    known = [row.ran_on for row in group if row.ran_on != "unknown"]
    return Verdict(
        cell=last.cell,
        stack=last.stack,
        preset=last.preset,
        scope=last.scope,
        device=last.device,
        ran_on=known[-1] if known else "unknown",
        workload=last.workload,
        workload_hash=last.workload_hash,
        environment_hash=last.environment_hash,
        host_kind=last.host_kind,
        executor=last.executor,
        qualifies_for_promotion=last.qualifies_for_promotion,
        stale=current[last.cell, last.executor] != last.environment_hash,
        tier=tier_of(passes, runs, thresholds),
        passes=passes,
        runs=runs,
        low=lower_bound(passes, runs, thresholds.confidence),
        high=upper_bound(passes, runs, thresholds.confidence),
        outcomes={name: outcomes[name] for name in OUTCOMES},
        diagnoses=dict(Counter(row.diagnosis for row in counted if row.diagnosis).most_common()),
        not_counted={name: count for name, count in not_counted.items() if count},
        imported=sum(row.imported for row in counted),
        run_ids=tuple(row.run_id for row in counted),
        last=last.run_id,
        last_at=last.finished,
    )
