"""Fixtures for tests with the real thing: the cpu stack's environment, the real app and a small workload."""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

from benchmarks.kill_tester import STAND_IN_BARS, write_stand_in
from harness.base.paths import CHECKOUT
from harness.base.sysfs import REAL_ROOT
from harness.cli.main import main
from harness.environments.environment import Environment, ensure_environment
from harness.environments.executors.job import Executor, Job
from harness.environments.executors.process import ProcessExecutor, ProcessHandle
from harness.environments.verifier import Verifier
from harness.evidence.files.app_files import InputFile, Phase
from harness.evidence.files.run_files import Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.host.fingerprint import read_host
from harness.host.processes.processes import variable_of
from harness.host.processes.run_processes import RUN_MARK, run_mark
from harness.matrix.cells import Cell, Matrix, Preset
from harness.matrix.load import load_matrix
from harness.matrix.workloads import SyntheticData, Workload
from harness.rehearsal.stand_in_app import SLOW
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from harness.run.watch.limits import LIMITS
from harness.run.workload_data import read_data, synthetic_file

PROGRAM = str(CHECKOUT / ".venv" / "bin" / "matrix")
MATRIX = """\
schema: 2
stacks:
  cpu: {accelerator: cpu, torch: "2.13.0"}
presets:
  plain: {description: nothing set}
  one: {description: one more, variables: {HSA_ENABLE_SDMA: "0"}}
  two-phases:
    description: a variable of each phase
    variables: {MALLOC_ARENA_MAX: "2"}
    features: {PYTORCH_NO_HIP_MEMORY_CACHING: "1"}
    train: {PYTORCH_NO_HIP_MEMORY_CACHING: "0"}
workloads:
  tiny:
    description: seconds
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 2
    batch_size: 64
    loader_workers: 0
    time_limit: 120
  endless:
    description: does not end by itself in the time of a test
    synthetic: {sessions: 26}
    lookback: 20
    epochs: 5000
    loader_workers: 2
    time_limit: 600
selections:
  default: {description: all, stacks: [cpu], presets: all, workload: tiny}
  endless: {description: never ends, stacks: [cpu], presets: [plain], workload: endless}
"""

TINY = Workload(
    name="tiny",
    description="seconds",
    synthetic=SyntheticData(sessions=26),
    lookback=20,
    epochs=2,
    loader_workers=0,
    time_limit=120,
)


# Files whose tests share results that take long to make; pytest-xdist leaves each set of files to one worker.
TOGETHER = (("test_faults.py",), ("test_lies.py", "test_one_run.py"), ("test_report_page.py",), ("test_train.py",))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler that distributes the tests to the workers of pytest-xdist."""

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((files[0] for files in TOGETHER if file.endswith(files)), nodeid)

    return Scheduler(config, log)


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a state folder, so that it learns of no GPUs from another test or from the user's harnesses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True, scope="session")
def _processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use processes as the executor, because these tests are about processes even where a Docker engine answers."""
    with pytest.MonkeyPatch.context() as patch:
        # Session fixtures are set up before `_state_of_its_own`, so they need a state folder here.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("MATRIX_EXECUTOR", "process")
        yield


@pytest.fixture(scope="session")
def matrix_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a matrix of three cells with a workload that takes seconds."""
    file = tmp_path_factory.mktemp("matrix") / "matrix.yaml"
    file.write_text(MATRIX, encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def small_matrix(matrix_file: Path) -> Matrix:
    return load_matrix(matrix_file)


@pytest.fixture(scope="session")
def environment(small_matrix: Matrix) -> Environment:
    return ensure_environment(small_matrix.stacks["cpu"])


@pytest.fixture(scope="session")
def data(environment: Environment, results: Results) -> InputFile:
    return read_data(synthetic_file(TINY, environment, ProcessExecutor()))


@pytest.fixture(scope="session")
def host() -> HostFacts:
    return read_host(REAL_ROOT)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return one results folder for the session."""
    return Results(tmp_path_factory.mktemp("results"))


RunCell = Callable[..., Record]


@pytest.fixture
def run_tiny(
    small_matrix: Matrix,
    environment: Environment,
    data: InputFile,
    host: HostFacts,
    results: Results,
    request: pytest.FixtureRequest,
) -> RunCell:
    """Return a function that really runs a cell; keywords replace fields of workload, preset, executor or limits."""
    return _runs_of(request.node.name, small_matrix, environment, data, host, results)


@pytest.fixture(scope="session")
def run_tiny_once(
    small_matrix: Matrix, environment: Environment, data: InputFile, host: HostFacts, results: Results
) -> RunCell:
    """Return a function like `run_tiny`, for fixtures that several tests share."""
    return _runs_of("shared", small_matrix, environment, data, host, results)


class Recording(ProcessExecutor):
    """An executor that copies what a training left before it is verified, because unneeded files are removed then."""

    def __init__(self, to: Path) -> None:
        self._to = to

    def start(self, job: Job) -> ProcessHandle:
        if "verify" in job.arguments:
            shutil.copytree(job.folder / "work", self._to)
        return super().start(job)


@pytest.fixture(scope="session")
def recorded(run_tiny_once: RunCell, tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Path]:
    """Return a real run of the plain cell that completed, and the folder of what its training left."""
    place = tmp_path_factory.mktemp("recorded") / "work"
    record = run_tiny_once(executor=Recording(place))
    assert (record.outcome, record.diagnosis) == ("completed", None), record.detail
    return record, place


@pytest.fixture(scope="session")
def completed(recorded: tuple[Record, Path]) -> Record:
    """Return a real run of the plain cell that completed."""
    return recorded[0]


@pytest.fixture(scope="session")
def original(recorded: tuple[Record, Path]) -> Path:
    """Return the folder of what the training of that run left."""
    return recorded[1]


def _runs_of(
    name: str, matrix: Matrix, given: Environment, data: InputFile, host: HostFacts, results: Results
) -> RunCell:
    def run(
        preset: Preset | None = None,
        executor: Executor | None = None,
        limits: Mapping[Phase, float] = LIMITS,
        environment: Environment = given,
        **changes: object,
    ) -> Record:
        cell = Cell(matrix.stacks["cpu"], preset or matrix.presets["plain"])
        run_id = f"{re.sub('[^a-z0-9]+', '-', name)[:60]}-{time.time_ns()}"
        workload = TINY.model_copy(update=changes)
        made = Run(run_id, cell, workload, data, environment, host, limits=limits, verifier=Verifier(given))
        return run_cell(made, results, executor or ProcessExecutor())

    return run


@pytest.fixture
def matrix_command(matrix_file: Path) -> Callable[..., list[str]]:
    """Return a function that makes a command line of `matrix` on the small matrix."""

    def command(results: Path, *words: str) -> list[str]:
        return [PROGRAM, "--matrix", str(matrix_file), "--results", str(results), *words]

    return command


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a stand-in for the app: its interpreter, data that it does not read, and a matrix file."""
    folder = tmp_path_factory.mktemp("stand-in")
    write_stand_in(folder / "python")
    (folder / "bars.csv").write_text(STAND_IN_BARS, encoding="utf-8")
    (folder / "matrix.yaml").write_text(_for_stand_in(MATRIX), encoding="utf-8")
    return folder


def _for_stand_in(matrix: str) -> str:
    """Return the matrix file for a stack that runs in an interpreter that the caller names, with one epoch."""
    stack = 'accelerator: cpu, torch: "2.13.0"', "accelerator: any"
    return matrix.replace(*stack).replace("epochs: 2\n", "epochs: 1\n")


def write_matrix(program: Path) -> None:
    """Write a program that is `matrix`, but for the runs of the stand-in being verified by the stand-in."""
    words = shlex.join([sys.executable, str(Path(__file__).with_name("stand_in_matrix.py"))])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    program.chmod(0o755)


class Command:
    """Makes command lines of `matrix` on the small matrix: with the real app, or with the stand-in in a folder."""

    def __init__(
        self, matrix_file: Path, stand_in: Path | None, data: Path | None = None, program: str = PROGRAM
    ) -> None:
        self.matrix_file = matrix_file
        self._stand_in = stand_in
        self._data = data or (stand_in / "bars.csv" if stand_in else None)
        self._program = program

    def adapted(self, matrix: str) -> str:
        """Return the text of a matrix file with one stack, adapted for the stand-in if there is one."""
        return _for_stand_in(matrix) if self._stand_in else matrix

    def on(self, matrix_file: Path) -> "Command":
        """Return a maker of such command lines for another matrix file."""
        return Command(matrix_file, self._stand_in, self._data, self._program)

    def verified(self, folder: Path) -> "Command":
        """Return a maker of such command lines whose runs are verified, too, if they are of the stand-in."""
        if self._stand_in is None:
            return self
        write_matrix(folder / "matrix")
        return Command(self.matrix_file, self._stand_in, self._data, str(folder / "matrix"))

    def slow(self, folder: Path, seconds: float = 0.4) -> "Command":
        """Return a maker of such command lines with steps of `seconds`, so that a test can watch the stand-in."""
        if self._stand_in is None:
            return self
        (folder / SLOW).write_text(str(seconds), encoding="utf-8")
        data = Path(shutil.copy(self._stand_in / "bars.csv", folder))
        return Command(self.matrix_file, self._stand_in, data, self._program)

    def __call__(self, results: Path, *words: str, matrix: Path | None = None) -> list[str]:
        """Return the command line; commands that run something also get the options that a stand-in needs."""
        place: tuple[str, ...] = ()
        if self._stand_in and words[0] in ("run", "run-cell", "minimise", "compare"):
            place = ("--python", str(self._stand_in / "python"), "--data", str(self._data))
        return [self._program, "--matrix", str(matrix or self.matrix_file), "--results", str(results), *words, *place]


@pytest.fixture(params=["stand-in", pytest.param("app", marks=pytest.mark.long)])
def quick_command(request: pytest.FixtureRequest, matrix_file: Path, stand_in: Path) -> Command:
    """Return the command line of `matrix` for tests of the harness, which need a run's files, not a real training."""
    if request.param == "app":
        return Command(matrix_file, None)
    return Command(stand_in / "matrix.yaml", stand_in)


def in_this_process(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command line of `matrix` in this process, which saves a second, and return how it ended."""
    said, errors, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            main(command[1:])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(command, status, said.getvalue(), errors.getvalue())


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until the condition is true, or fail after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def wait() -> Callable[..., None]:
    return wait_until


def marked_processes(results: Path) -> list[psutil.Process]:
    """Return the processes of all runs of a results folder."""
    runs = {run_mark(folder) for folder in (results / "runs").glob("*")}
    found = []
    for process in psutil.process_iter():
        try:
            if variable_of(process.pid, RUN_MARK) in runs and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def left_running() -> Callable[[Path], list[psutil.Process]]:
    return marked_processes


def end(process: subprocess.Popen[str], number: int) -> int:
    """Send a signal to the process, wait for its end, and return its exit status."""
    os.kill(process.pid, number)
    return process.wait(240)


@pytest.fixture
def signal_and_wait() -> Callable[[subprocess.Popen[str], signal.Signals], int]:
    return end
