"""Records -> verdicts: which environment trains to the end, on how many runs, and with what certainty. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from harness.evidence.host_state import HostSettings, changed_settings, state_from_json
from harness.evidence.row import Row, data_in_words
from harness.evidence.verdicts.counting import Counts, count_runs
from harness.evidence.verdicts.rates import lower_bound, upper_bound
from harness.evidence.verdicts.totals import Totals, totals_of
from harness.matrix.cells import Verdicts

Tier = Literal["untested", "excluded", "failing", "flaky", "seen", "candidate", "good", "known-good"]

SEEN: Tier = "seen"
ABOVE_SEEN: tuple[Tier, ...] = ("candidate", "good", "known-good")
Threshold = Literal["candidate", "good", "known_good"]
OUTCOMES = ("completed", "failed", "hung", "interrupted", "host-fault")
# Upper bound of the pass rate below which a cell fails whatever else it does.
FAILING = 0.5


@dataclass(frozen=True)
class Verdict:
    """The verdict on runs that may be counted together.

    Those are of the same environment, workload family, kind of host, executor and scope. `totals` are their starts and
    hours; the share of starts lies above `start_low`, the mean time between failures above `mtbf_low` hours. `workload`
    and its hash are of the newest of them, `data` names the files of all.

    `runs` are those that count, as `count_runs` finds, and `passes` of them passed; the pass rate lies above `low` and,
    each for itself, below `high` with the confidence of the matrix file, also when looked at after every run.
    `verified`: progress and result of all runs were compared. `not_counted`: by what keeps them from it (`interrupted`,
    `struck`, `not begun`). `outcomes` are of all runs, `diagnoses` of those that failed, the most frequent first;
    `failed_ids` are those, and after `gpu_faults` of them a GPU was reset or found unhealthy. `struck`: why a person
    struck out runs, by id. `hours_ids` are those of which only the hours count.
    `own_program`: they ran one of the user's own, whose numbers nobody checked. `uncommitted`: in an image of
    changes that no commit has, which nobody can make again: its tier is `seen` at most.
    `stale`: its environment changed since, or its host did, which `changed` tells; `settings` are those of that host.
    """

    cell: str
    stack: str
    preset: str
    scope: str
    device: str
    ran_on: str
    workload: str
    workload_hash: str
    data: str
    family: str
    environment_hash: str
    host_kind: str
    executor: str
    qualifies_for_promotion: bool
    verified: bool
    stale: bool
    tier: Tier
    passes: int
    runs: int
    low: float
    high: float
    totals: Totals
    start_low: float
    mtbf_low: float
    outcomes: Mapping[str, int]
    diagnoses: Mapping[str, int]
    not_counted: Mapping[str, int]
    imported: int
    run_ids: tuple[str, ...]
    failed_ids: tuple[str, ...]
    gpu_faults: tuple[str, ...]
    struck: Mapping[str, str]
    hours_ids: tuple[str, ...]
    last: str
    last_at: float
    settings: HostSettings
    changed: tuple[str, ...]
    own_program: bool
    uncommitted: bool

    @property
    def diagnosis(self) -> str | None:
        """The one that most failures have."""
        return next(iter(self.diagnoses), None)


def tier_of(passes: int, runs: int, totals: Totals, thresholds: Verdicts) -> Tier:
    """Return the tier that runs reach. Where nothing passed it is `failing`, on few runs too.

    It takes both bounds: of the share of starts, and of the mean time between failures. How many runs passed depends on
    how long they were: it decides only between `failing`, `flaky` and `seen`.
    """
    if not runs:
        return "untested"
    if passes == 0:
        return "failing"
    if reaches(totals, "known_good", thresholds) and totals.boots >= thresholds.known_good_boots:
        return "known-good"
    if reaches(totals, "good", thresholds):
        return "good"
    if passes < runs:
        return "failing" if upper_bound(passes, runs, thresholds.confidence) < FAILING else "flaky"
    return "candidate" if reaches(totals, "candidate", thresholds) else "seen"


def reaches(totals: Totals, threshold: Threshold, thresholds: Verdicts, confidence: float | None = None) -> bool:
    """Return whether both bounds are above those of a threshold, at the confidence of the matrix file or another."""
    confidence = confidence or thresholds.confidence
    hours: float = getattr(thresholds.mtbf_hours, threshold)
    enough = totals.start_rate(confidence) > getattr(thresholds, threshold)
    return enough and (hours == 0 or totals.mtbf(confidence) > hours)


def judge(
    rows: Iterable[Row],
    current: Mapping[tuple[str, str], str],
    thresholds: Verdicts,
    counts: Counts | None = None,
    *,
    pooled: bool = True,
    settings: Mapping[str, HostSettings] | None = None,
) -> list[Verdict]:
    """One verdict per identity of evidence, in the order of cells.

    `current` holds the environment hash a cell would have now with an executor; where that is not known, the newest
    one counts. Records of another one are stale: they are shown apart and never pooled. Rehearsals, and runs
    with an injected fault, do not count.
    `counts` are of all runs of the results folder; without them nothing is known of the GPUs' health. Where runs are
    not `pooled` there is a verdict for each workload of a family: the share of runs that pass depends on their length.
    `settings` are those of machines as they are now; of others, those of their newest run. Runs that a machine made
    with other ones are stale.
    """
    rows = list(rows)
    counts = count_runs(rows) if counts is None else counts
    rows = sorted((row for row in rows if row.can_be_evidence), key=attrgetter("started", "run_id"))
    # What was made elsewhere says nothing about what a cell would be here.
    here_last = sorted(rows, key=attrgetter("imported"), reverse=True)
    newest = {(row.cell, row.executor): row.environment_hash for row in here_last}
    current = {**newest, **current}
    changes = _changes(rows, settings or {})
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        about = row.family if pooled else row.workload_hash
        identity = (row.cell, about, row.host_kind, row.executor, row.environment_hash, row.scope, row.uncommitted)
        groups.setdefault((*identity, changes[row.machine, row.host_state]), []).append(row)
    return [_verdict(group, key[-1], current, thresholds, counts) for key, group in sorted(groups.items())]


def _changes(rows: Iterable[Row], settings: Mapping[str, HostSettings]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return what changed on each machine since it was in each of its states; `rows` are in the order of time."""
    states: dict[tuple[str, str], HostSettings] = {}
    newest: dict[str, HostSettings] = {}
    for row in rows:
        had = states[row.machine, row.host_state] = state_from_json(row.host_state).settings
        # Runs on a CPU alone tell none.
        if had:
            newest[row.machine] = had
    now = {**newest, **settings}
    return {of: changed_settings(had, now.get(of[0], {})) for of, had in states.items()}


def _verdict(
    group: list[Row],
    changed: tuple[str, ...],
    current: Mapping[tuple[str, str], str],
    thresholds: Verdicts,
    counts: Counts,
) -> Verdict:
    last = group[-1]
    outcomes = Counter(row.outcome for row in group)
    paired = [(row, counts[row.run_id]) for row in group]
    counted = [row for row, count in paired if count.counts]
    failed = [(row, count) for row, count in paired if count.counts_as == "failed"]
    passes, runs = len(counted) - len(failed), len(counted)
    not_counted = Counter(count.kind for _, count in paired if not count.counts)
    diagnoses = Counter(count.diagnosis or row.diagnosis for row, count in failed)
    totals = totals_of(group, counts)
    # Others, such as those that were struck out, take nothing from what these show.
    claimed = [row for row, count in paired if count.counts or count.hours_count] or group
    known = [row.ran_on for row in group if row.ran_on != "unknown"]
    tier = tier_of(passes, runs, totals, thresholds)
    return Verdict(
        cell=last.cell,
        stack=last.stack,
        preset=last.preset,
        scope=last.scope,
        device=last.device,
        ran_on=known[-1] if known else "unknown",
        workload=last.workload,
        workload_hash=last.workload_hash,
        data=data_in_words(group),
        family=last.family,
        environment_hash=last.environment_hash,
        host_kind=last.host_kind,
        executor=last.executor,
        qualifies_for_promotion=all(row.qualifies_for_promotion for row in claimed),
        verified=all(row.verified for row in claimed),
        stale=current[last.cell, last.executor] != last.environment_hash or bool(changed),
        settings=state_from_json(last.host_state).settings,
        changed=changed,
        tier=SEEN if last.uncommitted and tier in ABOVE_SEEN else tier,
        passes=passes,
        runs=runs,
        low=lower_bound(passes, runs, thresholds.confidence),
        totals=totals,
        start_low=totals.start_rate(thresholds.confidence),
        mtbf_low=totals.mtbf(thresholds.confidence),
        high=upper_bound(passes, runs, thresholds.confidence),
        outcomes={name: outcomes[name] for name in OUTCOMES},
        diagnoses={name: count for name, count in diagnoses.most_common() if name},
        not_counted=dict(not_counted),
        imported=sum(row.imported for row in counted),
        run_ids=tuple(row.run_id for row in counted),
        failed_ids=tuple(row.run_id for row, _ in failed),
        gpu_faults=tuple(row.run_id for row, count in failed if count.gpu_fault),
        hours_ids=tuple(row.run_id for row, count in paired if count.hours_count),
        struck={row.run_id: row.struck for row in group if row.struck is not None},
        last=last.run_id,
        last_at=last.finished,
        own_program=last.own_program,
        uncommitted=last.uncommitted,
    )
