"""Records -> verdicts: which environment trains to the end, on how many runs, and how certain that is. Pure."""

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
# If the upper bound of the pass rate is below this, a cell is failing whatever else it shows.
FAILING = 0.5


@dataclass(frozen=True)
class Verdict:
    """The verdict on runs that may be counted together.

    Such runs have the same environment, workload family, kind of host, executor and scope. Bounds hold with the
    confidence of the matrix file, each for itself, also when they are computed after every run.

    Attributes:
        workload: The workload of the newest run; so is `workload_hash`.
        data: The names of the data files of all runs.
        verified: Whether progress and result of all runs were compared.
        stale: Whether the environment changed since, or the host did, as `changed` says.
        passes: How many of `runs` passed.
        runs: The number of runs that count, as `count_runs` finds.
        low: The pass rate is above this.
        high: The pass rate is below this.
        totals: The starts and hours of the runs.
        start_low: The share of starts that succeed is above this.
        mtbf_low: The mean time between failures is above this, in hours.
        outcomes: The outcomes of all runs.
        diagnoses: The diagnoses of the failed runs, the most frequent first.
        not_counted: The number of runs that do not count, by the reason (`interrupted`, `struck`, `not begun`).
        failed_ids: The ids of the failed runs.
        gpu_faults: The ids of those after which a GPU was reset or found unhealthy.
        struck: Why a person struck out runs, by id.
        hours_ids: The ids of the runs of which only the hours count.
        settings: The settings of the host of these runs.
        own_program: Whether they ran a program of the user's own, whose numbers nothing checked.
        uncommitted: Whether the image has changes that no commit has, so that it cannot be built again: the tier is
            `seen` at most.
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
        """The diagnosis that most failures have."""
        return next(iter(self.diagnoses), None)


def tier_of(passes: int, runs: int, totals: Totals, thresholds: Verdicts) -> Tier:
    """Return the tier that runs reach; it is `failing` where none passed, even of few runs.

    A tier takes both bounds: of the share of starts, and of the mean time between failures. The share of runs that
    passed depends on their length, so it only decides between `failing`, `flaky` and `seen`.
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
    """Return whether both bounds exceed a threshold, at the confidence of the matrix file or another one."""
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
    """Return one verdict for each identity of evidence, in the order of cells.

    Rehearsals and runs with an injected fault do not count.

    Args:
        rows: The runs.
        current: The environment hash that each cell has now, by cell and executor; where it is not known, that of the
            newest run. Records of another hash are stale: they are shown separately and never pooled.
        thresholds: The thresholds of the tiers.
        counts: How all runs of the results folder count; without them nothing is known of the health of GPUs.
        pooled: Whether the runs of a workload family are counted together. If not, there is a verdict for each
            workload, because the share of runs that pass depends on their length.
        settings: The current settings of machines; for other machines, those of their newest run. Runs that a machine
            made with other settings are stale.
    """
    rows = list(rows)
    counts = count_runs(rows) if counts is None else counts
    rows = sorted((row for row in rows if row.can_be_evidence), key=attrgetter("started", "run_id"))
    # Runs made elsewhere do not show which environment a cell would have here.
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
    """Return what has changed on each machine since each of its states. `rows`: in the order of time."""
    states: dict[tuple[str, str], HostSettings] = {}
    newest: dict[str, HostSettings] = {}
    for row in rows:
        had = states[row.machine, row.host_state] = state_from_json(row.host_state).settings
        # Runs on a CPU report no settings.
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
    # Other runs, such as those that were struck out, take nothing from what these show.
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
