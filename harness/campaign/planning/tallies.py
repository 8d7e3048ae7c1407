"""Tallies of the cells that a campaign chooses from: their runs so far, counted as in `matrix status`."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from harness.campaign.bench.bench import Bench
from harness.campaign.bench.plan import Plan, PlannedRun
from harness.environments.docker.source_state import is_dirty
from harness.environments.environment_hashes import current_hashes
from harness.evidence.host_state import settings_of
from harness.evidence.index import Index
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.scope import scope
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import device_count, family
from harness.search.schedule import Candidate, Tally

# Outcomes of runs that ended by themselves, so that their duration is known.
ENDED_BY_ITSELF = ("completed", "failed", "hung")


@dataclass
class Tallies:
    """Reads the tallies of the candidates of a plan on a bench."""

    plan: Plan
    bench: Bench
    matrix: Matrix
    _current: dict[tuple[str, str], str] = field(default_factory=dict)
    _causes: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._current = dict(
            current_hashes(self.matrix, {(run.cell.id, self.bench.executor_name) for run in self.plan.runs})
        )

    def candidate(self, planned: PlannedRun) -> Candidate:
        """Return the candidate that a planned run is evidence of."""
        cell, workload = planned.cell, self.plan.workload
        device, gpus, devices = self._devices(planned)
        facts = (gpu for gpu in self.bench.host.gpus if gpu.index in gpus)
        about = scope(device, facts, workload.strategy, devices, simulated=self.bench.host.simulated)
        return Candidate(cell.id, cell.stack.name, cell.preset.name, about, max(1, len(gpus)))

    def family_of(self, planned: PlannedRun) -> str:
        """Return the workload family of a planned run."""
        return family(self.plan.workload, self._devices(planned)[2])

    def tried(self) -> set[tuple[str, str]]:
        """Return the cells, each with its scope, that had runs of the plan's workload family on this kind of host."""
        families = {self.family_of(one) for one in self.plan.runs}
        here = (self.bench.host.kind, self.bench.executor_name)
        return {
            (row.cell, row.scope)
            for row in Index(self.bench.results).rows()
            if row.family in families and (row.host_kind, row.executor) == here and not row.imported
        }

    def _devices(self, planned: PlannedRun) -> tuple[str, tuple[int, ...], int]:
        cell = planned.cell
        device = self.bench.environment(cell).device if self.bench.has_environment(cell) else cell.stack.device
        gpus = planned.gpus if device == "cuda" else ()
        return device, gpus, device_count(self.plan.workload, device, gpus)

    def read(self) -> tuple[dict[Candidate, Tally], dict[str, float]]:
        """Return the tally of every candidate that was run, and the seconds of a run of each cell on this host."""
        candidates = {(one.cell, one.scope): one for one in map(self.candidate, self.plan.runs)}
        cells = {cell for cell, _ in candidates}
        families = {self.family_of(one) for one in self.plan.runs}
        # Imported runs do not qualify for promotion here: a search that counted them would end with a refused cell.
        everything = Index(self.bench.results).rows()
        counts = counts_of(self.bench.results, everything)
        made_here = [row for row in everything if not row.imported]
        rows = [row for row in made_here if row.cell in cells and row.family in families]
        tallies = {}
        by_id = {row.run_id: row for row in rows}
        settings = settings_of(self.bench.host)
        found = judge(rows, self._now(), self.matrix.verdicts, counts, settings=settings)
        # Of images with and without uncommitted changes, the verdict counts that the next runs are added to.
        dirty = self._uncommitted_cells()
        for verdict in sorted(found, key=lambda one: one.uncommitted == (one.cell in dirty)):
            candidate = candidates.get((verdict.cell, verdict.scope))
            if candidate and self._is_ours(verdict):
                failed = (by_id[run_id] for run_id in verdict.failed_ids)
                causes = Counter(cause for row in failed if (cause := self._cause(row)))
                boots = {by_id[run_id].boot_id for run_id in verdict.run_ids}
                on_this_boot = self.bench.host.boot_id in boots
                tallies[candidate] = Tally(verdict.passes, verdict.runs, causes, verdict.totals, on_this_boot)
        return tallies, self._seconds(rows)

    def _uncommitted_cells(self) -> set[str]:
        """Return the cells whose environment was made from uncommitted changes."""
        made = (run.cell for run in self.plan.runs if self.bench.has_environment(run.cell))
        return {cell.id for cell in made if is_dirty(self.bench.environment(cell).revision)}

    def _is_ours(self, verdict: Verdict) -> bool:
        where = (verdict.host_kind, verdict.executor)
        return not verdict.stale and where == (self.bench.host.kind, self.bench.executor_name)

    def _now(self) -> dict[tuple[str, str], str]:
        """Return the environment hash of each cell; the hash of an environment that was made here is certain."""
        cells = {run.cell.id: run.cell for run in self.plan.runs}
        return {**self._current, **self.bench.made_hashes(cells.values())}

    def _cause(self, row: Row) -> str | None:
        """Return the class of a failure; its diagnosis if it was not explained."""
        if row.run_id not in self._causes:
            # The row of a damaged record still counts.
            record = self.bench.results.readable_record(row.run_id)
            explained = record.explanation.class_ if record and record.explanation else None
            self._causes[row.run_id] = explained or row.diagnosis
        return self._causes[row.run_id]

    def _is_here(self, row: Row) -> bool:
        """Return whether a run shows how long runs take now: it is of this host or, with a scheduler, its host kind."""
        if self.bench.dispatcher:
            return row.host_kind == self.bench.host.kind
        return row.host_fingerprint == self.bench.host.fingerprint

    def _seconds(self, rows: Iterable[Row]) -> dict[str, float]:
        taken = defaultdict(list)
        for row in rows:
            if self._is_here(row) and row.outcome in ENDED_BY_ITSELF:
                taken[row.cell].append(row.finished - row.started)
        return {cell: median(each) for cell, each in taken.items()}
