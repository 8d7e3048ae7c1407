"""The target of fault injection: one cell on the CPU, with a separate results folder and the real executors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.recovery import close_leftovers
from harness.campaign.runner import InterruptedRunError, Runner
from harness.environments.capabilities import capabilities_of, why_not
from harness.environments.executors.docker import LABEL, DockerExecutor
from harness.environments.executors.job import Executor
from harness.environments.verifier import verifying_stack
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results, new_run_id
from harness.faults.kinds import WORKLOAD
from harness.faults.own_engine import OwnEngine, own_engine
from harness.host.engine import Engine
from harness.host.engine_errors import Notify
from harness.host.processes.run_processes import processes_of_run, run_mark
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import ExecutorName
from harness.matrix.workloads import Workload
from harness.run.requested_run import Run


class _Notifying(Display):
    """A display that shows steps and problems as lines."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify

    def step(self, text: str) -> None:
        """Show a step that precedes a run."""
        self._notify(text)

    def notice(self, text: str) -> None:
        """Show what is worth a line."""
        self._notify(text)

    def problem(self, text: str) -> None:
        """Show a leftover of an earlier command, or a file that cannot be read."""
        self._notify(text)


@dataclass(frozen=True)
class InjectionTarget:
    """A cell, and the bench that it runs on; with an engine it runs in containers."""

    bench: Bench
    cell: Cell

    @property
    def results(self) -> Results:
        """The results folder of the injections."""
        return self.bench.results

    @property
    def engine(self) -> Engine | None:
        """The engine that runs the cell's containers; None for processes."""
        return self.bench.engine

    @property
    def executor_name(self) -> ExecutorName:
        """The name of the executor."""
        return self.bench.executor_name

    def run(
        self,
        workload: Workload,
        label: str,
        run_id: str | None = None,
        change: Callable[[Run], Run] = lambda run: run,
        executor: Executor | None = None,
    ) -> Record:
        """Run the cell once; `change` and `executor` inject a fault.

        Raises:
            KeyboardInterrupt: after the run was recorded as interrupted.
        """
        bench = replace(self.bench, executor=executor or self.bench.executor)
        pending = PendingRun(PlannedRun(self.cell, 1), run_id or new_run_id(label))
        try:
            _, record = Runner(bench, workload, Display(), total=1).run([pending], change=change)
        except InterruptedRunError as error:
            return error.record
        return record

    def recover(self) -> None:
        """Close the leftovers of a run whose engine died."""
        close_leftovers(self.bench, Display())

    def left_of(self, run_id: str) -> list[str]:
        """Return what a run that has ended left behind on this host, in words."""
        folder = self.results.run_folder(run_id)
        temporary = RunFolder(folder).temporary
        left = [f"process {process.pid}" for process in processes_of_run(folder)]
        if self.engine:
            wanted = {"label": f"{LABEL}={run_mark(folder)}"}
            found = self.engine.client.containers.list(all=True, filters=wanted)
            left += [f"container {container.short_id}" for container in found]
        return left + ([str(temporary)] if temporary.exists() else [])

    @contextmanager
    def with_own_engine(self) -> Iterator[tuple["InjectionTarget", OwnEngine]]:
        """Yield the same target on a separate engine, which has the image of the cell.

        Raises:
            UserError: when the engine does not start.
        """
        image = self.bench.environment(self.cell).image
        if self.engine is None or image is None:
            raise UserError("only containers use an engine of their own")
        with own_engine() as own, ExitStack() as connections:
            engine = own.start()
            source, target = self.engine.client_without_timeout, engine.client_without_timeout
            for client in (source, target, engine.client):
                connections.callback(client.close)
            target.images.load(source.images.get(image).save())
            bench = replace(self.bench, engine=engine, executor=DockerExecutor(engine, self.results.runs))
            yield replace(self, bench=bench), own


def make_target(
    results: Results, matrix: Matrix, executor: ExecutorName | None, notify: Notify, root: Path = Path("/")
) -> InjectionTarget:
    """Return the target: a cell of a cpu stack whose preset sets nothing, ready to run.

    Raises:
        UserError: when the matrix has no such cell, or it cannot run here.
    """
    cell = _cell(matrix)
    options = BenchOptions(results, executor=executor, root=root, verifying=verifying_stack(matrix))
    bench = open_bench(options, [cell], lambda _: ())
    if reason := why_not(cell, capabilities_of(bench.host, bench.engine, [cell], None), named=True):
        raise UserError(f"cell {cell.id}, into which faults are injected, cannot run here: {reason}")
    display = _Notifying(notify)
    bench.make_ready(cell, WORKLOAD, display)
    close_leftovers(bench, display)
    return InjectionTarget(bench, cell)


def _cell(matrix: Matrix) -> Cell:
    for cell in matrix.cells.values():
        alone = cell.preset.phases == ("train",) and not cell.preset.variables
        usual = cell.stack.accelerator == "cpu" and not (cell.excluded or cell.stack.torch_from_base or cell.stack.jax)
        if alone and usual:
            return cell
    raise UserError("faults are injected into a cell of a cpu stack whose preset sets nothing; the matrix has none")
