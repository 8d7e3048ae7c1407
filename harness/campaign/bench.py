"""Where runs are made: this host, its environments, a results folder, and the GPUs that a run has to itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.base.errors import UserError
from harness.base.failpoints import reached
from harness.base.interrupts import shielded
from harness.campaign.gpu_locks import Claim, lock_gpus
from harness.campaign.plan import PlannedRun
from harness.environments.build import ensure_cell_image
from harness.environments.environment import (
    Environment,
    ensure_environment,
    host_environment,
    image_environment,
)
from harness.environments.executors.container import gpu_devices
from harness.environments.executors.docker import LABEL
from harness.environments.executors.job import Executor
from harness.evidence.app_files import InputFile, Progress
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.run_files import Record
from harness.host.engine import ENGINE_ERRORS, Engine, Notify, find_engine
from harness.host.facts import GpuFacts, HostFacts
from harness.host.processes import run_mark
from harness.matrix.cells import Cell, Stack, Workload
from harness.run.run_cell import run_cell
from harness.run.spec import Run
from harness.run.watch.limits import Standing
from harness.run.watch.watch import Observer
from harness.run.workload_data import check_data, read_data, synthetic_file


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

    def still(self, standing: Standing) -> None:
        """No rank of the current run advances; of the one that advanced last."""

    def time_left(self, seconds: float | None) -> None:
        """How long the campaign takes from now, as far as that can be told."""

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
        name = self._name(cell)
        if name not in self._environments:
            if self.engine:
                image = ensure_cell_image(self.engine, cell, notify)
                self._environments[name] = image_environment(image.id, image.identity, stack)
            elif stack.accelerator == "any":
                if self.interpreter is None:
                    raise UserError(f"stack {stack.name} needs --python INTERPRETER")
                self._environments[name] = host_environment(self.interpreter)
            else:
                self._environments[name] = ensure_environment(stack, notify)
        return self._environments[name]

    def give(self, cell: Cell, environment: Environment) -> None:
        """Have a cell run in this environment, whatever would be made for it."""
        self._environments[self._name(cell)] = environment

    def data_of(self, workload: Workload, environment: Environment) -> InputFile:
        """The data of a workload: the user's, looked at once, or synthetic bars.

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

    def has_environment(self, cell: Cell) -> bool:
        """Whether what a cell runs in is ready."""
        return self._name(cell) in self._environments

    @contextmanager
    def gpus_for(self, runs: Sequence[tuple[PlannedRun, str]], notify: Notify) -> Iterator[int]:
        """Hold the GPUs of the first of these planned runs, each with its id, that can have them; yields which.

        They are held until the processes of the run are gone, whatever becomes of this one.
        """
        claims = [
            Claim(self.results.run_folder(run_id), tuple(map(self._gpu, gpus_needed(planned))))
            for planned, run_id in runs
        ]
        with lock_gpus(claims, notify, self._container_runs, self.root) as chosen:
            yield chosen

    def make(self, run: Run, display: Display, heed: Observer = lambda _: None) -> Record:
        """Make a run, enter its record in the index, and show it. `heed` gets its progress lines, and may end it.

        Raises:
            KeyboardInterrupt: after that; also what `heed` raised of this kind.
        """

        def observe(line: Progress) -> None:
            reached("running")
            display.progress(line)
            heed(line)

        with shielded():
            try:
                return run_cell(run, self.results, self.executor, observe, self.root, display.still)
            finally:
                if record := self.results.record(run.run_id):
                    try:
                        Index(self.results).add(record)
                    except UserError as error:
                        display.problem(str(error))
                    display.finished(record)

    def _name(self, cell: Cell) -> str:
        """What its environment is kept under: cells of a stack share it, but for images."""
        return cell.id if self.engine else cell.stack.name

    def _gpu(self, index: int) -> GpuFacts:
        return next(gpu for gpu in self.host.gpus if gpu.index == index)

    def _container_runs(self, folder: Path) -> bool:
        # It may have been started in one though this bench runs processes.
        with suppress(UserError, *ENGINE_ERRORS):
            if engine := self.engine or find_engine():
                return bool(engine.client.api.containers(filters={"label": f"{LABEL}={run_mark(folder)}"}))
        return False


def gpus_needed(planned: PlannedRun) -> tuple[int, ...]:
    """The GPUs that a planned run wants for itself. An interpreter of the user's may use the one it is given."""
    return () if planned.cell.stack.accelerator == "cpu" else planned.gpus
