"""Runs of cells that are compared with each other: each is made until it counts, and found again by its id."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median

from harness.base.errors import UserError
from harness.base.storage import json_hash
from harness.campaign.bench import Bench, Display, gpus_needed
from harness.campaign.plan import PlannedRun
from harness.evidence.health_log import sick_gpus
from harness.evidence.index import Index
from harness.evidence.run_files import Record
from harness.evidence.unhealthy_gpu_runs import tainted_runs
from harness.evidence.verdicts.verdict import COUNTED
from harness.matrix.cells import Cell, Workload

GOES_ON = "the same command goes on where it stopped"
# The host's fault so often one after the other is not going to pass.
MOST_FAULTS = 3


class TaintedError(Exception):
    """A run that was counted before turned out to be tainted by a sick GPU."""


@dataclass
class Trials:
    """Where they are made, and what. `placed` is a run of one of the cells: it says on which GPUs."""

    bench: Bench
    workload: Workload
    placed: PlannedRun
    display: Display
    campaign: str
    total: int
    _counted: set[str] = field(default_factory=set)
    _repeats: Counter[str] = field(default_factory=Counter)
    _seconds: list[float] = field(default_factory=list)
    _tainted: Collection[str] | None = None

    def passed(self, cell: Cell, position: int) -> bool:
        """Whether a run of a cell completed: one that was made before at this position, or a new one.

        Runs that were interrupted, tainted or a fault of the host say nothing and are made again.

        Raises:
            TaintedError: when a run that this told of earlier turned out to be tainted.
            UserError: when the host cannot go on.
            KeyboardInterrupt: after the run was recorded as interrupted.
        """
        self._repeats[cell.id] += 1
        base = f"{self.campaign}-{position:04d}-{json_hash(cell.id)[:6]}"
        faults = 0
        for attempt in count(1):
            run_id = base if attempt == 1 else f"{base}-again{attempt}"
            record = self.bench.results.record(run_id)
            if record is None:
                record = self._make(cell, run_id, position)
                faults += record.outcome == "host-fault"
            if faults == MOST_FAULTS:
                raise UserError(f"{record.detail}; mend the host (`matrix doctor`), then {GOES_ON}")
            self._seconds.append(record.finished - record.intent.started)
            if record.outcome in COUNTED and run_id not in self._known_tainted():
                self._counted.add(run_id)
                return record.outcome == "completed"
        raise AssertionError("the attempts never end")

    def _make(self, cell: Cell, run_id: str, position: int) -> Record:
        planned = replace(self.placed, cell=cell, repeat=self._repeats[cell.id])
        bench, display = self.bench, self.display
        for gpu, why in sick_gpus(bench.results, bench.host).items():
            if gpu in gpus_needed(planned):
                raise UserError(f"GPU {gpu} takes no more runs: {why}; mend the host (`matrix doctor`), then {GOES_ON}")
        if not bench.has_environment(cell):
            display.preparing(cell.stack)
            bench.data_of(self.workload, bench.environment(cell, display.step))
        with bench.gpus_for([(planned, run_id)], display.step):
            if self._seconds:
                # Those that were made before tell it already at the first of a search that goes on.
                display.time_left(median(self._seconds) * (self.total - position + 1))
            display.started(planned, position, self.total)
            record = bench.make(bench.run(planned, run_id, self.workload, self.campaign), display)
        if record.outcome == "interrupted":
            raise UserError(f"{record.detail}; {GOES_ON}")
        if record.outcome != "completed":
            self._tainted = None
            if self._counted & set(self._known_tainted()):
                raise TaintedError
        return record

    def _known_tainted(self) -> Collection[str]:
        if self._tainted is None:
            self._tainted = tainted_runs(self.bench.results, Index(self.bench.results).rows())
        return self._tainted
