"""The bench that cells are run on: this host, its environments, a results folder, and GPUs that a run has to itself."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import NoAnswerError, UserError
from harness.campaign.bench.dispatch import Dispatcher
from harness.campaign.bench.display import Display
from harness.campaign.bench.gpu_locks import GpuClaim, is_free, lock_gpus
from harness.campaign.bench.plan import PlannedRun
from harness.environments.docker.base_image import NoBaseImageError
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.node_images import NodeImages
from harness.environments.docker.own_images import is_own
from harness.environments.environment import Environment, ensure_environment, host_environment
from harness.environments.executors.container import gpu_devices
from harness.environments.executors.docker import LABEL, DockerExecutor
from harness.environments.executors.job import Executor
from harness.environments.python.packages import ensure_packages, refuse_contradiction
from harness.environments.python.programs import take_program
from harness.environments.verifier import NO_VERIFIER, Verifier, make_verifier
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.engine import Engine, find_engine, wait_for_engine
from harness.host.engine_errors import ENGINE_ERRORS, Notify
from harness.host.facts import GpuFacts, HostFacts
from harness.host.processes.run_processes import run_mark
from harness.matrix.cells import Cell
from harness.matrix.stacks import ExecutorName, Stack
from harness.matrix.workloads import Workload
from harness.registry.image_sources import images_in_source
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from harness.run.watch.engine_watch import Say
from harness.run.watch.watch import Observer, OnStall
from harness.run.workload_data import check_data, read_data, synthetic_file, synthetic_place


class StackUnavailableError(UserError):
    """The environment of a stack's cells cannot be made. `left_out` is the message of a campaign that skips the stack.

    - `like`: another stack that was left out for the same reason, which is then not repeated.
    - `passes`: the reason may go away, so that the environment can be made later.
    """

    code = "stack-unavailable"

    def __init__(self, stack: Stack, why: str, like: str | None = None, *, passes: bool = False) -> None:
        super().__init__(why)
        self.stack = stack
        self.passes = passes
        reason = f", for the same reason as {like}" if like else f": {_of_any(stack, why)}"
        self.left_out = f"stack {stack.name} is left out{' for now' if passes else ''}{reason}"


def _of_any(stack: Stack, why: str) -> str:
    """Return a reason without the name of its stack."""
    return why.removeprefix(f"stack {stack.name}: ")


@dataclass
class Bench:
    """The bench that cells are run on: this host, its environments and a results folder.

    Attributes:
        gpus: indexes of the GPUs that may be used, in the order of preference.
        engine: the Docker engine; with one, cells run in containers, otherwise as processes.
        root: the folder with the device nodes; it can be a fake tree.
        verifying: the stack that runs are verified in.
        lacks_base: why the base image of a stack is missing that also runs as a process; None if none was missing.
        dispatcher: carries runs to other hosts, which `host` then represents; this host only prepares environments.
    """

    results: Results
    executor: Executor
    host: HostFacts
    gpus: tuple[int, ...]
    interpreter: Path | None = None
    data: Path | None = None
    engine: Engine | None = None
    root: Path = Path("/")
    verifying: Stack | None = None
    lacks_base: str | None = None
    dispatcher: Dispatcher | None = None
    _verifier: Verifier | None = None
    _environments: dict[str, Environment] = field(default_factory=dict)
    _data: dict[Workload, InputFile] = field(default_factory=dict)
    _bars: dict[Path, InputFile] = field(default_factory=dict)
    _states: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    _ready: set[tuple[str, Workload]] = field(default_factory=set)
    _images: dict[str, NodeImages] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)

    @property
    def executor_name(self) -> ExecutorName:
        """The name of the executor: `docker` if cells run in containers, `process` if they run as processes."""
        return "docker" if self.engine else "process"

    def environment(self, cell: Cell, notify: Notify = lambda _: None) -> Environment:
        """Return the environment of a cell, made if needed: an image of its own, or one that its stack shares.

        Raises:
            UserError: when the environment cannot be made.
        """
        stack = cell.stack
        name = self._name(cell)
        if name not in self._environments:
            if self.engine:
                self._environments[name] = ensure_cell_image(self.engine, cell, notify).environment(stack)
            elif stack.accelerator == "any":
                if self.interpreter is None:
                    raise UserError(f"stack {stack.name} needs --python INTERPRETER")
                self._environments[name] = host_environment(self.interpreter, notify)
            else:
                self._environments[name] = ensure_environment(stack, notify)
        return self._environments[name]

    def verifier(self, notify: Notify = lambda _: None) -> Verifier:
        """Return the environment that verifies runs on this host, or why there is none; it is made only once."""
        if self._verifier is None:
            self._verifier = make_verifier(self.verifying, self.engine, notify)
        return self._verifier

    def images_of(self, cell: Cell) -> NodeImages | None:
        """Return the images that nodes use for the runs of a cell that is ready; None if the nodes need none."""
        return self._images.get(cell.id)

    def use_verifier(self, verifier: Verifier) -> None:
        """Verify runs with this verifier instead of making one."""
        self._verifier = verifier

    def use_data(self, workload: Workload, data: InputFile) -> None:
        """Use these data for a workload without checking them."""
        self._data[workload] = data

    def use_environment(self, cell: Cell, environment: Environment) -> None:
        """Run a cell in this environment instead of making one."""
        self._environments[self._name(cell)] = environment

    def has_environment(self, cell: Cell) -> bool:
        """Return whether the environment of a cell was made."""
        return self._name(cell) in self._environments

    def made_hashes(self, cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
        """Return the environment hash of each of the cells whose environment was made, by cell and executor."""
        made = filter(self.has_environment, cells)
        return {(cell.id, self.executor_name): self.environment(cell).hash(cell.preset) for cell in made}

    def data_of(self, workload: Workload, environment: Environment) -> InputFile:
        """Return the data of a workload: the user's, checked once, or synthetic bars.

        Raises:
            UserError: when the user's data cannot be trained on, or were changed since they were read.
        """
        if workload.program:
            taken = workload.program.taken or take_program(workload.program, f"workload {workload.name}").taken
            return InputFile(path=workload.program.source, sha256=taken.version if taken else "")
        if workload in self._data:
            return self._unchanged(self._data[workload])
        # Prefer the verifier: bars that somebody else's image makes are for runs of this image alone.
        own = (self._verifier and self._verifier.environment) or environment
        if self.data:
            if own.image and not is_own(own.image):
                # What such an image says of the data would end the campaign; so its own run shows it.
                if self.data not in self._bars:
                    self._bars[self.data] = self._read(self.data)
                return self._unchanged(self._bars[self.data])
            check_data(self.data, workload, own, self.executor)
            self._data[workload] = self._read(self.data)
            return self._data[workload]
        place = synthetic_place(workload, own.image)
        if place not in self._bars:
            self._bars[place] = read_data(synthetic_file(workload, own, self.executor))
        return self._bars[place]

    def _read(self, file: Path) -> InputFile:
        with suppress(OSError):
            self._states[file] = _state_of(file)
        return read_data(file)

    def _unchanged(self, known: InputFile) -> InputFile:
        """Return the user's data as they were read, or raise UserError if the file has other content now.

        Each further run would train on something else than what it is asked for, and fail.
        """
        file = self.data
        if file is None or file not in self._states:
            return known
        with suppress(OSError):
            if _state_of(file) == self._states[file]:
                return known
        before = self._states[file]
        if self._read(file).sha256 != known.sha256:
            self._states[file] = before
            raise UserError(
                f"--data {file}: was changed since it was read; put back what it held to continue, or give the same "
                "command to begin with the new bars"
            )
        return known

    def is_ready(self, cell: Cell, workload: Workload) -> bool:
        """Return whether `make_ready` was called for this cell and workload."""
        return (self._name(cell), workload) in self._ready

    def make_ready(self, cell: Cell, workload: Workload, display: Display) -> None:
        """Make the environment of a cell, and the data of a workload.

        The user's data are checked first in the small stack that verifies, if it can be made, before a large stack is
        made.

        Raises:
            StackUnavailableError: when the environment cannot be made.
            UserError: when the data cannot be trained on.
        """
        display.preparing(cell.stack)
        self.await_engine(display.problem)
        if self.data and (verifying := self.verifier(display.step).environment):
            self._show_data(workload, display)
            self.data_of(workload, verifying)
        try:
            if workload.program:
                refuse_contradiction(workload.program, cell.stack)
            environment = self._environment_made(cell, display)
            self._packages_of(cell, workload, environment, display.step)
        except UserError as error:
            if isinstance(error, NoBaseImageError) and "process" in cell.stack.executors:
                self.lacks_base = error.why
            why = str(error)
            first = self._reasons.setdefault(_of_any(cell.stack, why), cell.stack.name)
            like, passes = first if first != cell.stack.name else None, isinstance(error, NoAnswerError)
            raise StackUnavailableError(cell.stack, why, like, passes=passes) from error
        verifier = self.verifier(display.step)
        self._show_data(workload, display)
        self.data_of(workload, environment)
        self._look_at_source(cell, verifier)
        self._ready.add((self._name(cell), workload))

    def requested_run(self, planned: PlannedRun, run_id: str, workload: Workload, campaign: str | None = None) -> Run:
        """Return the full description of a planned run on this bench: its environment, data, GPUs and device nodes."""
        cell = planned.cell
        environment = self.environment(cell)
        data = self.data_of(workload, environment)
        gpus = planned.gpus if environment.device == "cuda" else ()
        given = tuple(gpu for gpu in self.host.gpus if gpu.index in gpus) if self.engine else ()
        nodes = gpu_devices(given, self.root)
        return Run(
            run_id,
            cell,
            workload,
            data,
            environment,
            self.host,
            gpus,
            campaign,
            planned.repeat,
            devices=nodes,
            verifier=self._verifier or NO_VERIFIER,
            packages=self._packages_of(cell, workload, environment),
        )

    def await_engine(self, say: Say) -> None:
        """Wait until the Docker engine answers, if there is one; `say` is called with a line of text meanwhile.

        Raises:
            NoEngineError: when it does not answer for two minutes.
        """
        if self.engine:
            wait_for_engine(self.engine, say)

    def remove_lost_containers(self) -> None:
        """Remove leftover containers of runs that were lost with the engine, which could not remove them then."""
        if isinstance(self.executor, DockerExecutor):
            self.executor.remove_leftovers(self.results.record)

    def run_cell(
        self,
        run: Run,
        observe: Observer = lambda _: None,
        on_stall: OnStall = lambda _: None,
        say: Say = lambda _: None,
    ) -> Record:
        """Run a cell once and write its record; `say` is called with a line of text while the engine does not answer.

        Raises:
            UserError: when the results folder cannot be written.
            KeyboardInterrupt: after the run was recorded.
        """
        return run_cell(run, self.results, self.executor, observe, self.root, on_stall, say)

    @contextmanager
    def gpus_for(
        self, runs: Sequence[tuple[PlannedRun, str]], notify: Notify, seconds: float | None = None
    ) -> Iterator[int]:
        """Lock the GPUs of the first of these planned runs, each with its id, that can have its GPUs; yield its index.

        The locks are held until the processes of the run are gone, even if this process ends earlier. `seconds`: the
        longest wait; None: without end.

        Raises:
            StillInUseError: when none can have its GPUs after that wait.
        """
        claims = [self._claim(planned, run_id) for planned, run_id in runs]
        with lock_gpus(claims, notify, self._container_runs, self.root, seconds) as chosen:
            yield chosen

    def has_free_gpus_for(self, planned: PlannedRun, run_id: str) -> bool:
        """Return whether a planned run could have its GPUs now."""
        return is_free(self._claim(planned, run_id), self._container_runs, self.root)

    def _claim(self, planned: PlannedRun, run_id: str) -> GpuClaim:
        return GpuClaim(self.results.run_folder(run_id), tuple(map(self._gpu, gpus_needed(planned))))

    def _environment_made(self, cell: Cell, display: Display) -> Environment:
        """Return the environment of a cell; if the engine went away meanwhile, wait and try once more."""
        try:
            return self.environment(cell, display.step)
        except UserError:
            if self.engine is None or self.engine.answers():
                raise
        self.await_engine(display.problem)
        return self.environment(cell, display.step)

    def _show_data(self, workload: Workload, display: Display) -> None:
        """Show that the data of a workload are being checked or made, unless they are known already."""
        if workload.program or workload in self._data:
            return
        if self.data:
            display.short_step(f"checking {self.data.name}")
        elif not synthetic_place(workload).is_file():
            display.short_step(f"making synthetic bars of {workload.synthetic.sessions} sessions")

    def _look_at_source(self, cell: Cell, verifier: Verifier) -> None:
        """Check that the nodes of a scheduler can get the images that runs of a cell need."""
        if self.dispatcher and self.dispatcher.images and self.engine:
            try:
                self._images[cell.id] = images_in_source(
                    self.engine, self.dispatcher.images, cell, self.verifying, verifier
                )
            except UserError as error:
                passes = isinstance(error, NoAnswerError)
                raise StackUnavailableError(cell.stack, str(error), passes=passes) from error

    def _packages_of(
        self, cell: Cell, workload: Workload, environment: Environment, notify: Notify = lambda _: None
    ) -> Path | None:
        """Return the folder with the packages of a user's program, made if needed; None without a program."""
        if workload.program is None:
            return None
        version = None if environment.image else environment.version
        return ensure_packages(workload.program, cell.stack, version, notify)

    def _name(self, cell: Cell) -> str:
        """Return the key of a cell's environment: cells of a stack share an environment unless they run in images."""
        return cell.id if self.engine else cell.stack.name

    def _gpu(self, index: int) -> GpuFacts:
        for gpu in self.host.gpus:
            if gpu.index == index:
                return gpu
        raise UserError(f"GPU {index}: this host has none of that number; `matrix doctor` lists its GPUs")

    def _container_runs(self, folder: Path) -> bool:
        # An earlier run may have been started in a container although this bench runs processes.
        with suppress(UserError, *ENGINE_ERRORS):
            if engine := self.engine or find_engine():
                return bool(engine.client.api.containers(filters={"label": f"{LABEL}={run_mark(folder)}"}))
        return False


def gpus_needed(planned: PlannedRun) -> tuple[int, ...]:
    """Return the GPUs to lock for a planned run: none for a CPU stack, otherwise all that the run is given."""
    return () if planned.cell.stack.accelerator == "cpu" else planned.gpus


def _state_of(file: Path) -> tuple[int, ...]:
    """Return what is different once somebody has written to a file or replaced it; raises OSError."""
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
