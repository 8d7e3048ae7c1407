"""A bench that runs nothing: each test scripts how its runs end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from harness.campaign.bench.bench import Bench
from harness.campaign.bench.plan import PlannedRun
from harness.evidence.files.run_files import Record
from harness.matrix.cells import Cell


class ScriptedBench(Bench):
    """A bench whose runs take a second each and leave real records.

    - `outcome_of`: returns the outcome of a run in a cell.
    - `made`: the ids of the runs, in order.
    """

    make_record: Callable[..., Record]
    outcome_of: Callable[[Cell], str]
    made: list[str]

    def environment(self, cell: Cell, notify: Any = None) -> Any:
        self._environments[self._name(cell)] = cast("Any", object())
        return SimpleNamespace(hash=lambda preset: preset.name, image=None)

    def data_of(self, *_: object) -> Any:
        return SimpleNamespace(sha256="d")

    def requested_run(self, planned: PlannedRun, run_id: str, workload: Any, campaign: str | None = None) -> Any:
        known = {"host": self.host, "gpus": planned.gpus, "repeat": planned.repeat, "campaign": campaign}
        known["started"] = 1e9 + len(self.made) - 1
        cell = planned.cell
        intent = self.make_record(run_id, "failed", cell=cell.id, preset=cell.preset.name, **known).intent
        return SimpleNamespace(
            cell=cell, run_id=run_id, workload_hash=intent.workload_hash, gpus=planned.gpus, intent=lambda _: intent
        )

    @contextmanager
    def gpus_for(self, *_: object) -> Iterator[int]:
        yield 0

    def run_cell(self, run: Any, *_: object) -> Record:
        outcome = self.outcome_of(run.cell)
        changes = {"intent": run.intent(None), "finished": 1e9 + len(self.made)}
        record = self.make_record(run.run_id, outcome).model_copy(update=changes)
        self.results.begin(record.intent)
        self.results.finish(record)
        self.made.append(run.run_id)
        return record
