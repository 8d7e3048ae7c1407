"""Where drills are made: one cell on the CPU, one results folder of their own, the real executors."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.campaign.bench import Bench
from harness.campaign.recovery import recover
from harness.environments.capabilities import capabilities_of, choose_engine, why_not
from harness.environments.environment import Environment
from harness.environments.executors.docker import LABEL, DockerExecutor
from harness.environments.executors.job import Executor
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_files import InputFile
from harness.evidence.index import Index
from harness.evidence.records import Results, new_run_id
from harness.evidence.run_files import Intent, Record
from harness.faults.kinds import WORKLOAD
from harness.faults.own_engine import OwnEngine, own_engine
from harness.host.engine import Engine, Notify
from harness.host.facts import HostFacts
from harness.host.fingerprint import REAL_ROOT, read_host
from harness.host.processes import processes_of_run, run_mark
from harness.matrix.cells import Cell, ExecutorName, Matrix, Workload
from harness.run.process_environment import temporary_folder
from harness.run.run_cell import run_cell
from harness.run.spec import Run


@dataclass(frozen=True)
class Place:
    """A cell that is ready to be run, and where its records go. With an engine it runs in containers."""

    results: Results
    executor: Executor
    host: HostFacts
    cell: Cell
    environment: Environment
    data: InputFile
    engine: Engine | None
    root: Path = REAL_ROOT

    @property
    def executor_name(self) -> ExecutorName:
        """How its runs are run."""
        return "docker" if self.engine else "process"

    def run(self, workload: Workload, label: str) -> Run:
        """A new run here."""
        return Run(new_run_id(label), self.cell, workload, self.data, self.environment, self.host)

    def make(self, run: Run, executor: Executor | None = None) -> Record:
        """Make a run and enter its record in the index."""
        record = run_cell(run, self.results, executor or self.executor, root=self.root)
        Index(self.results).add(record)
        return record

    def settle(self) -> list[str]:
        """What every command does first: close what an earlier one left. Returns what could not be read."""
        damaged: list[str] = []
        for record in recover(self.results, self.host, self._executor_of, damaged):
            Index(self.results).add(record)
        if isinstance(self.executor, DockerExecutor):
            self.executor.remove_leftovers(self.results.record)
        return damaged

    def _executor_of(self, intent: Intent) -> Executor | None:
        """What started a run. A container left where there is no engine now goes when there is one again."""
        if intent.executor == "process":
            return ProcessExecutor(self.results.runs)
        return self.executor if self.engine else None

    def left_of(self, run: Run) -> list[str]:
        """What a run that has ended left on this host, in words."""
        folder = self.results.run_folder(run.run_id)
        left = [f"process {process.pid}" for process in processes_of_run(folder)]
        if self.engine:
            wanted = {"label": f"{LABEL}={run_mark(folder)}"}
            found = self.engine.client.containers.list(all=True, filters=wanted)
            left += [f"container {container.short_id}" for container in found]
        return left + ([str(temporary_folder(folder))] if temporary_folder(folder).exists() else [])

    @contextmanager
    def with_own_engine(self) -> Iterator[tuple["Place", OwnEngine]]:
        """The same on an engine of its own, which has the image of the cell.

        Raises:
            UserError: when it does not start.
        """
        if self.engine is None or self.environment.image is None:
            raise UserError("an engine of its own is of use to containers only")
        with own_engine() as own, ExitStack() as connections:
            engine = own.start()
            source, target = self.engine.patient, engine.patient
            for client in (source, target, engine.client):
                connections.callback(client.close)
            target.images.load(source.images.get(self.environment.image).save())
            yield replace(self, engine=engine, executor=DockerExecutor(engine, self.results.runs)), own


def make_place(
    results: Results, matrix: Matrix, executor: ExecutorName | None, notify: Notify, root: Path = REAL_ROOT
) -> Place:
    """The plain cell of a stack for CPUs, made ready.

    Raises:
        UserError: when the matrix has none, or it cannot run here.
    """
    cell = _cell(matrix)
    engine = choose_engine([cell], executor)
    host = read_host(root)
    if reason := why_not(cell, capabilities_of(host, engine, [cell], None), named=True):
        raise UserError(f"cell {cell.id}, in which drills are made, cannot run here: {reason}")
    runs = DockerExecutor(engine, results.runs) if engine else ProcessExecutor(results.runs)
    bench = Bench(results, runs, host, (), engine=engine, root=root)
    environment = bench.environment(cell, notify)
    place = Place(results, runs, host, cell, environment, bench.data_of(WORKLOAD, environment), engine, root)
    for damaged in place.settle():
        notify(damaged)
    return place


def _cell(matrix: Matrix) -> Cell:
    for cell in matrix.cells.values():
        alone = cell.preset.phases == ("train",) and not cell.preset.variables
        if alone and not cell.excluded and cell.stack.accelerator == "cpu" and not cell.stack.torch_from_base:
            return cell
    raise UserError("drills are made in a cell of a cpu stack with a preset that sets nothing; the matrix has none")
