"""Many runs planned together: their order, and going on where an interrupted campaign stopped."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.contracts import HostFacts, InputFile, Progress, Record
from harness.environments import Environment, app_hash, ensure_environment, host_environment
from harness.errors import UserError
from harness.executors import Executor
from harness.index import Index
from harness.matrix import Cell, Stack, Workload
from harness.plan import Plan, PlannedRun
from harness.records import Results, new_run_id
from harness.run import Run
from harness.run_cell import run_cell
from harness.storage import json_hash, write_json
from harness.workloads import options_of, read_data, synthetic_file


class Display(Protocol):
    """What shows a campaign to a person."""

    def preparing(self, stack: Stack) -> None:
        """An environment is being made ready."""

    def started(self, planned: PlannedRun, position: int, total: int) -> None:
        """A run begins."""

    def progress(self, line: Progress) -> None:
        """The current run moved."""

    def finished(self, record: Record) -> None:
        """A run has its record."""

    def problem(self, text: str) -> None:
        """Something kept cells from being run."""


@dataclass
class Bench:
    """Where runs are made: this host, its environments, a results folder."""

    results: Results
    executor: Executor
    host: HostFacts
    gpus: tuple[int, ...]
    interpreter: Path | None = None
    data: Path | None = None
    _environments: dict[str, Environment] = field(default_factory=dict)
    _data: dict[str, InputFile] = field(default_factory=dict)

    def environment(self, stack: Stack) -> Environment:
        """The environment of a stack, made where needed.

        Raises:
            UserError: when it cannot be made.
        """
        if stack.name not in self._environments:
            if stack.accelerator == "any":
                if self.interpreter is None:
                    raise UserError(f"stack {stack.name} needs --python INTERPRETER")
                self._environments[stack.name] = host_environment(self.interpreter)
            else:
                self._environments[stack.name] = ensure_environment(stack)
        return self._environments[stack.name]

    def run(self, run_id: str, cell: Cell, workload: Workload, campaign: str | None = None) -> Run:
        """A run of a cell on this bench."""
        environment = self.environment(cell.stack)
        if workload.name not in self._data:
            self._data[workload.name] = read_data(self.data or synthetic_file(workload, environment))
        gpus = (cell.preset.devices or self.gpus[:1]) if environment.device == "cuda" else ()
        data = self._data[workload.name]
        return Run(run_id, cell, workload, data, environment, self.host, gpus, campaign)


@dataclass(frozen=True)
class Campaign:
    """A campaign of a results folder."""

    id: str
    results: Results

    def run_ids(self, planned: PlannedRun) -> Iterator[str]:
        """The ids of the attempts at a planned run: one, unless attempts were interrupted."""
        base = f"{self.id}-{planned.cell.id}-{planned.repeat}"
        yield base
        attempt = 2
        while True:
            yield f"{base}-again{attempt}"
            attempt += 1

    def next_run_id(self, planned: PlannedRun) -> str | None:
        """The id for the next attempt; None when the run is done."""
        for run_id in self.run_ids(planned):
            if not self.results.run_folder(run_id).exists():
                return run_id
            record = self.results.record(run_id)
            if record is not None and record.outcome != "interrupted":
                return None
        raise AssertionError("the attempts never end")


def begin_or_continue(plan: Plan, bench: Bench) -> tuple[Campaign, bool]:
    """The newest unfinished campaign of this very plan, or a new one; True when it is continued."""
    folder = bench.results.folder / "campaigns"
    key = _key(plan, bench)
    for file in sorted(folder.glob("*.json"), reverse=True):
        if json.loads(file.read_text(encoding="utf-8")).get("key") == key:
            campaign = Campaign(file.stem, bench.results)
            if any(campaign.next_run_id(planned) for planned in plan.runs):
                return campaign, True
            break
    campaign = Campaign(new_run_id("c"), bench.results)
    runs = [{"cell": planned.cell.id, "repeat": planned.repeat} for planned in plan.runs]
    write_json(folder / f"{campaign.id}.json", {"schema": 1, "key": key, "started": time.time(), "runs": runs})
    return campaign, False


def carry_out(plan: Plan, bench: Bench, campaign: Campaign, display: Display) -> list[Record]:
    """Make the runs that are still to be made, one after the other.

    Raises:
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    index = Index(bench.results)
    records = []
    broken: set[str] = set()
    prepared: set[str] = set()
    for position, planned in enumerate(plan.runs, start=1):
        run_id = campaign.next_run_id(planned)
        stack = planned.cell.stack
        if run_id is None or stack.name in broken:
            continue
        try:
            if stack.name not in prepared:
                display.preparing(stack)
            run = bench.run(run_id, planned.cell, plan.workload, campaign.id)
            prepared.add(stack.name)
        except UserError as error:
            broken.add(stack.name)
            display.problem(f"stack {stack.name} is left out: {error}")
            continue
        display.started(planned, position, len(plan.runs))
        try:
            record = run_cell(run, bench.results, bench.executor, display.progress)
        finally:
            # Also after Ctrl-C: the run was recorded as interrupted before it was raised.
            if ended := bench.results.record(run_id):
                index.add(ended)
                display.finished(ended)
        records.append(record)
    return records


def _key(plan: Plan, bench: Bench) -> str:
    """What makes two campaigns the same: continuing one must not mix evidence."""
    data = read_data(bench.data).sha256 if bench.data else plan.workload.synthetic.model_dump()
    runs = [[planned.cell.id, planned.repeat] for planned in plan.runs]
    return json_hash([runs, options_of(plan.workload), data, app_hash(), bench.host.fingerprint])
