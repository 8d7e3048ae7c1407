"""Many runs planned together: their order, and going on where an interrupted campaign stopped."""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness import environments
from harness.build import ensure_cell_image
from harness.containers import gpu_devices
from harness.contracts import HostFacts, InputFile, Progress, Record
from harness.engine import Engine, Notify
from harness.environments import Environment
from harness.errors import UserError
from harness.executors import Executor
from harness.images import recipe
from harness.index import Index
from harness.interrupts import shielded
from harness.matrix import Cell, Stack, Workload
from harness.paths import LOCKS
from harness.plan import Plan, PlannedRun
from harness.records import Results, new_run_id
from harness.run import Run
from harness.run_cell import run_cell
from harness.storage import file_hash, json_hash, write_json
from harness.workloads import check_data, options_of, read_data, synthetic_file


class Display(Protocol):
    """What shows a campaign to a person."""

    def preparing(self, stack: Stack) -> None:
        """An environment is being made ready."""

    def step(self, text: str) -> None:
        """Something takes its time before a run can begin."""

    def started(self, planned: PlannedRun, position: int, total: int) -> None:
        """A run begins."""

    def progress(self, line: Progress) -> None:
        """The current run moved."""

    def finished(self, record: Record) -> None:
        """A run has its record."""

    def problem(self, text: str) -> None:
        """Something kept cells from being run, or the index from being kept."""


@dataclass
class Bench:
    """Where runs are made: this host, its environments, a results folder. With an engine, cells are containers.

    `root` holds the device nodes, and can be a fake tree.
    """

    results: Results
    executor: Executor
    host: HostFacts
    gpus: tuple[int, ...]
    interpreter: Path | None = None
    data: Path | None = None
    engine: Engine | None = None
    root: Path = Path("/")
    _environments: dict[str, Environment] = field(default_factory=dict)
    _data: dict[Workload, InputFile] = field(default_factory=dict)

    def environment(self, cell: Cell, notify: Notify = lambda _: None) -> Environment:
        """What a cell runs in, made where needed: an image of its own, or what all cells of its stack share.

        Raises:
            UserError: when it cannot be made.
        """
        stack = cell.stack
        name = cell.id if self.engine else stack.name
        if name not in self._environments:
            if self.engine:
                image = ensure_cell_image(self.engine, cell, notify)
                self._environments[name] = environments.image_environment(image.id, image.identity, stack)
            elif stack.accelerator == "any":
                if self.interpreter is None:
                    raise UserError(f"stack {stack.name} needs --python INTERPRETER")
                self._environments[name] = environments.host_environment(self.interpreter)
            else:
                self._environments[name] = environments.ensure_environment(stack)
        return self._environments[name]

    def data_of(self, workload: Workload, environment: Environment) -> InputFile:
        """The data of a workload: the user's, looked at once, or made-up bars.

        Raises:
            UserError: when the user's data cannot be trained on.
        """
        if workload not in self._data:
            if self.data:
                check_data(self.data, workload, environment, self.executor)
            self._data[workload] = read_data(self.data or synthetic_file(workload, environment, self.executor))
        return self._data[workload]

    def run(self, planned: PlannedRun, run_id: str, workload: Workload, campaign: str | None = None) -> Run:
        """A run of a cell on this bench."""
        cell = planned.cell
        environment = self.environment(cell)
        data = self.data_of(workload, environment)
        gpus = planned.gpus if environment.device == "cuda" else ()
        given = tuple(gpu for gpu in self.host.gpus if gpu.index in gpus) if self.engine else ()
        nodes = gpu_devices(given, self.root)
        return Run(run_id, cell, workload, data, environment, self.host, gpus, campaign, planned.repeat, devices=nodes)

    def make(self, run: Run, display: Display) -> Record:
        """Make a run, enter its record in the index, and show it.

        Raises:
            KeyboardInterrupt: after that.
        """
        with shielded():
            try:
                return run_cell(run, self.results, self.executor, display.progress)
            finally:
                if record := self.results.record(run.run_id):
                    try:
                        Index(self.results).add(record)
                    except UserError as error:
                        display.problem(str(error))
                    display.finished(record)


@dataclass(frozen=True)
class Campaign:
    """A campaign of a results folder."""

    id: str
    results: Results

    def attempts(self, planned: PlannedRun) -> Iterator[str]:
        """The ids of the attempts at a planned run: one, unless attempts were interrupted."""
        base = f"{self.id}-{planned.cell.id}{planned.placement}-{planned.repeat}"
        yield base
        attempt = 2
        while True:
            yield f"{base}-again{attempt}"
            attempt += 1

    def next_attempt(self, planned: PlannedRun) -> str | None:
        """The id for the next attempt; None when the run is done."""
        for run_id in self.attempts(planned):
            if not self.results.run_folder(run_id).exists():
                return run_id
            record = self.results.record(run_id)
            if record is not None and record.outcome != "interrupted":
                return None
        raise AssertionError("the attempts never end")

    def done(self, plan: Plan) -> int:
        """How many runs of the plan are done."""
        return sum(self.next_attempt(planned) is None for planned in plan.runs)


@contextmanager
def begin_or_continue(plan: Plan, bench: Bench) -> Iterator[tuple[Campaign, bool]]:
    """The newest unfinished campaign of this very plan that no other process is at, or a new one.

    Yields it with True when it is continued. While it is open nobody else continues it.
    """
    folder = bench.results.folder / "campaigns"
    key = _key(plan, bench)
    for file in sorted(folder.glob("*.json"), reverse=True):
        campaign = Campaign(file.stem, bench.results)
        with file.open("rb") as stream:
            if _says(stream.read(), key) and _lock(stream.fileno()) and campaign.done(plan) < len(plan.runs):
                yield campaign, True
                return
    campaign = Campaign(new_run_id("c"), bench.results)
    runs = [{"cell": planned.cell.id, "repeat": planned.repeat} for planned in plan.runs]
    file = folder / f"{campaign.id}.json"
    write_json(file, {"schema": 1, "key": key, "started": time.time(), "runs": runs})
    with file.open("rb") as stream:
        _lock(stream.fileno())
        yield campaign, False


def carry_out(plan: Plan, bench: Bench, campaign: Campaign, display: Display) -> None:
    """Make the runs that are still to be made, one after the other.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    broken: set[str] = set()
    for position, planned in enumerate(plan.runs, start=1):
        run_id = campaign.next_attempt(planned)
        stack = planned.cell.stack
        if run_id is None or stack.name in broken:
            continue
        try:
            display.preparing(stack)
            environment = bench.environment(planned.cell, display.step)
        except UserError as error:
            broken.add(stack.name)
            display.problem(f"stack {stack.name} is left out: {error}")
            continue
        bench.data_of(plan.workload, environment)
        display.started(planned, position, len(plan.runs))
        record = bench.make(bench.run(planned, run_id, plan.workload, campaign.id), display)
        if record.outcome == "interrupted":
            raise UserError(f"{record.detail}; the same command goes on where it stopped")


def _key(plan: Plan, bench: Bench) -> str:
    """What makes two campaigns the same: continuing one must not mix evidence."""
    cells = [
        [planned.cell.stack.model_dump(), planned.cell.preset.model_dump(), planned.repeat, planned.gpus]
        for planned in plan.runs
    ]
    stacks = {planned.cell.stack.name: planned.cell.stack for planned in plan.runs}
    # The lock of a stack may be resolved by the campaign itself: only what is committed is known before.
    files = [LOCKS / f"{name}{ending}" for name in sorted(stacks) for ending in (".in", ".txt")]
    pinned = [file_hash(file) if file.is_file() else None for file in files]
    data = read_data(bench.data).sha256 if bench.data else plan.workload.synthetic.model_dump()
    interpreter = str(bench.interpreter.absolute()) if bench.interpreter else None
    what = [options_of(plan.workload), plan.workload.time_limit, data]
    executor = "docker" if bench.engine else "process"
    # What images are made by; their base and lock may be resolved by the campaign itself.
    executor += json_hash([recipe(stack) for stack in stacks.values()]) if bench.engine else ""
    return json_hash([cells, pinned, what, environments.app_hash(), interpreter, bench.host.fingerprint, executor])


def _says(content: bytes, key: str) -> bool:
    """Whether a campaign's file is sound and of this plan."""
    try:
        return bool(json.loads(content)["key"] == key)
    except (ValueError, KeyError, TypeError):
        return False


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
