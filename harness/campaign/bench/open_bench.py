"""Opens the bench that a command asks for."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import NoSuchFileError, UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.dispatch import Dispatcher
from harness.environments.capabilities import choose_engine
from harness.environments.executors.docker import DockerExecutor
from harness.environments.executors.process import ProcessExecutor
from harness.environments.in_use import keep_in_place
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.records import Results
from harness.host.facts import GpuFacts, HostFacts
from harness.host.fingerprint import training_gpus
from harness.host.gpus.displays import headless_first
from harness.matrix.cells import Cell
from harness.matrix.stacks import ExecutorName, Stack
from harness.run.workload_data import HOW_TO_MERGE, require_table

if TYPE_CHECKING:
    from harness.environments.executors.job import Executor

NO_SOURCE = (
    "the nodes have no source of images; name a registry or a folder as `images:` under hosts: in the matrix file, "
    "or give --executor process"
)


@dataclass(frozen=True)
class BenchOptions:
    """The options of a command about the place where it runs cells.

    Attributes:
        data: the user's merged CSV.
        interpreter: the interpreter of the stack `host`.
        executor: without one, containers are used if a Docker engine answers.
        root: the folder with the host's /sys and /dev; it can be a fake tree.
        verifying: the stack that runs are verified in.
        dispatcher: carries runs to other hosts.
    """

    results: Results
    data: Path | None = None
    interpreter: Path | None = None
    executor: ExecutorName | None = None
    root: Path = Path("/")
    verifying: Stack | None = None
    dispatcher: Dispatcher | None = None


def open_bench(
    options: BenchOptions,
    cells: Sequence[Cell],
    gpus_of: Callable[[HostFacts], Iterable[GpuFacts]] = training_gpus,
    host: HostFacts | None = None,
) -> Bench:
    """Return the bench on which these cells are run. `host` is read now unless it is given.

    `gpus_of` chooses the GPUs that may be used. While this process lives, nothing removes the environments of cells.

    Raises:
        UserError: when the data are no merged CSV, the interpreter cannot be executed, or the executor is not
            available.
    """
    keep_in_place()
    engine = choose_engine(cells, options.executor)
    if engine and options.dispatcher and not options.dispatcher.images:
        raise UserError(NO_SOURCE)
    for option, file in (("--data", options.data), ("--python", options.interpreter)):
        if file is not None and not file.is_file():
            makes = f"; {HOW_TO_MERGE if file == options.data else 'give the path of an interpreter with torch'}"
            raise NoSuchFileError(f"{option} {file}: {'is not a file' if file.exists() else 'no such file'}{makes}")
    if options.interpreter and not os.access(options.interpreter, os.X_OK):
        raise UserError(f"--python {options.interpreter}: cannot be executed; give an interpreter with torch")
    if options.data:
        require_table(options.data)
    runs = options.results.runs
    executor: Executor = DockerExecutor(engine, runs) if engine else ProcessExecutor()
    if options.dispatcher:
        host = options.dispatcher.host
    host = host or host_of(options.results, options.root)
    gpus = headless_first(list(gpus_of(host)))
    return Bench(
        options.results,
        executor,
        host,
        gpus,
        options.interpreter,
        options.data,
        engine,
        options.root,
        options.verifying,
        dispatcher=options.dispatcher,
    )
