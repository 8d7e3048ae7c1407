"""The tallies of the cells that a campaign chooses from: their runs so far, counted as `matrix status` counts them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from harness.base.storage import file_hash
from harness.campaign.bench import Bench
from harness.campaign.plan import Plan, PlannedRun
from harness.environments.environment_hashes import current_hashes
from harness.evidence.discounted_runs import discounted_runs
from harness.evidence.index import Index, Row
from harness.evidence.verdicts.scope import scope
from harness.evidence.verdicts.verdict import COUNTED, Verdict, judge
from harness.matrix.cells import Matrix
from harness.matrix.workload_options import device_count, workload_hash
from harness.run.workload_data import synthetic_place
from harness.search.schedule import Candidate, Tally


@dataclass
class Tallies:
    """Reads what is known of the candidates of a plan on a bench."""

    plan: Plan
    bench: Bench
    matrix: Matrix
    _workload_hash: str | None = None
    _current: dict[tuple[str, str], str] = field(default_factory=dict)
    _causes: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._current = dict(current_hashes(self.matrix, {(run.cell.id, self._executor) for run in self.plan.runs}))

    def candidate(self, planned: PlannedRun) -> Candidate:
        """Return the candidate that a planned run is evidence of."""
        cell = planned.cell
        device = self.bench.environment(cell).device if self.bench.has_environment(cell) else cell.stack.device
        gpus = planned.gpus if device == "cuda" else ()
        workload = self.plan.workload
        facts = (gpu for gpu in self.bench.host.gpus if gpu.index in gpus)
        devices = device_count(workload, device, gpus)
        about = scope(device, facts, workload.strategy, devices, simulated=self.bench.host.simulated)
        return Candidate(cell.id, cell.stack.name, cell.preset.name, about, max(1, len(gpus)))

    def read(self) -> tuple[dict[Candidate, Tally], dict[str, float]]:
        """Return the tally of every candidate that was run, and the seconds of a run of each cell on this host."""
        candidates = {(one.cell, one.scope): one for one in map(self.candidate, self.plan.runs)}
        cells = {cell for cell, _ in candidates}
        hash_ = self._hash_of_workload()
        # Imported runs do not qualify for promotion here: a search that counted them would end with a refused cell.
        everything = Index(self.bench.results).rows()
        discounted = discounted_runs(self.bench.results, everything)
        made_here = [row for row in everything if not row.imported]
        rows = [row for row in made_here if row.cell in cells and row.workload_hash == hash_]
        tallies = {}
        by_id = {row.run_id: row for row in rows}
        for verdict in judge(rows, self._now(), self.matrix.verdicts, discounted):
            candidate = candidates.get((verdict.cell, verdict.scope))
            if candidate and self._is_ours(verdict):
                failed = (by_id[run_id] for run_id in verdict.run_ids if by_id[run_id].outcome != "completed")
                causes = Counter(cause for row in failed if (cause := self._cause(row)))
                tallies[candidate] = Tally(verdict.passes, verdict.runs, causes)
        return tallies, self._seconds(rows)

    @property
    def _executor(self) -> str:
        return "docker" if self.bench.engine else "process"

    def _is_ours(self, verdict: Verdict) -> bool:
        where = (verdict.host_kind, verdict.executor)
        return not verdict.stale and where == (self.bench.host.kind, self._executor)

    def _now(self) -> dict[tuple[str, str], str]:
        """The environment hashes of the cells; that of an environment which was made here is certain."""
        cells = {run.cell.id: run.cell for run in self.plan.runs}.values()
        made = (cell for cell in cells if self.bench.has_environment(cell))
        certain = {(cell.id, self._executor): self.bench.environment(cell).hash(cell.preset) for cell in made}
        return {**self._current, **certain}

    def _hash_of_workload(self) -> str | None:
        """Of data that is not made yet nothing is known."""
        data = self.bench.data or synthetic_place(self.plan.workload)
        if self._workload_hash is None and data.is_file():
            self._workload_hash = workload_hash(self.plan.workload, file_hash(data))
        return self._workload_hash

    def _cause(self, row: Row) -> str | None:
        """The class of a failure, where it was explained."""
        if row.run_id not in self._causes:
            record = self.bench.results.record(row.run_id)
            explained = record.explanation.class_ if record and record.explanation else None
            self._causes[row.run_id] = explained or row.diagnosis
        return self._causes[row.run_id]

    def _seconds(self, rows: Iterable[Row]) -> dict[str, float]:
        taken = defaultdict(list)
        for row in rows:
            if row.host_fingerprint == self.bench.host.fingerprint and row.outcome in COUNTED:
                taken[row.cell].append(row.finished - row.started)
        return {cell: median(each) for cell, each in taken.items()}
