"""The commands that run a cell without the harness: a docker command, or one in the cell's environment."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness.base.contract import CONTRACT
from harness.base.errors import UserError
from harness.base.paths import APP
from harness.campaign.bench.open_bench import BenchOptions
from harness.campaign.bench.plan import BEST, first_plain_cell, placements
from harness.environments.capabilities import capabilities_of, why_not
from harness.environments.docker.images import cell_tag, inputs_of
from harness.environments.environment import ensure_environment, image_environment
from harness.environments.executors.container import KFD, WORK, DeviceNode, gpu_devices
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_folder import RunFolder
from harness.host.engine_errors import Notify
from harness.host.facts import HostFacts
from harness.host.fingerprint import read_host, training_gpus
from harness.host.gpus.displays import headless_first
from harness.matrix.cells import Cell, Matrix
from harness.matrix.workloads import Workload
from harness.run.launch import visible_devices
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from harness.run.workload_data import read_data, synthetic_place

# GPUs and device nodes in a printed command if the host has no GPU.
ASSUMED_GPUS = (0, 1)
ASSUMED_NODES = (DeviceNode(KFD, KFD, 0), DeviceNode("/dev/dri/renderD128", "/dev/dri/renderD128", 0))
NO_GPU_HERE = "No GPU was found here: insert your own render node and the numeric group of /dev/kfd."
ASKS_HELP = frozenset({"--help", "-h"})
# The programs that `matrix exec` runs, each as arguments of the interpreter.
IN_CELL = {"vpoc": ("-m", "vpoc"), "python": ()}
# With `-m`, Python would import from the working folder first, which may hold files that somebody sent.
VARIABLES = {"vpoc": {"PYTHONSAFEPATH": "1"}, "python": {}}


def docker_command(options: BenchOptions, cell: Cell, workload: Workload) -> str:
    """Return the `docker run` commands that train a cell by hand as a run would, as lines for a shell.

    This function pulls, builds and makes nothing, and needs no GPU. If there are no data, the first lines make them;
    comments say what else is missing here.

    Raises:
        UserError: when the cell has no image, or the data cannot be read.
    """
    if cell.excluded or "docker" not in cell.stack.executors:
        raise UserError(f"cell {cell.id} only runs as a process" if not cell.excluded else cell.excluded)
    host = read_host(options.root)
    file = options.data or synthetic_place(workload)
    if options.data is None and not file.is_file():
        # Another image may have this name by the time that the lines are run, so no run of the harness uses its bars.
        file = synthetic_place(workload, cell_tag(cell))
    # The hash of data that the lines have yet to make is unknown; the app only repeats the hash in its result.
    missing = options.data is None and not file.is_file()
    data = InputFile(path=str(file.absolute()), sha256="0" * 64) if missing else read_data(file)
    identity = inputs_of(None, cell.stack).identity
    environment = image_environment(cell_tag(cell), identity, CONTRACT, cell.stack)
    contained = environment.device == "cuda"
    chosen = placements(cell, workload, 1, gpus_or_assumed(host))[0].gpus if contained else ()
    nodes = nodes_or_assumed(chosen, host, options.root)
    run = Run("by-hand", cell, workload, data, environment, host, chosen, devices=nodes)
    spec = resolve_run(run, RunFolder(options.results.folder / "by-hand"))
    intent, work = spec.intent, spec.work
    if spec.container is None:
        raise UserError(f"cell {cell.id} only runs as a process")
    lines = [f"# `matrix build {cell.id}` builds the image {cell_tag(cell)}, `matrix pull` fetches it."]
    if nodes is ASSUMED_NODES:
        lines.append(f"# {NO_GPU_HERE}")
    lines.append(shlex.join(["mkdir", "-p", *map(str, (work.output, *work.places))]))
    if missing:
        plain = replace(spec.container, devices=(), data=())
        made, name = workload.synthetic, file.name
        words = ("synth", "--sessions", str(made.sessions), "--seed", str(made.seed), "--output", str(WORK / name))
        lines += [
            never_pulled(plain.command_line(dict(spec.variables), words)),
            shlex.join(["mkdir", "-p", str(file.parent)]),
        ]
        lines.append(shlex.join(["mv", str(work.path / name), str(file)]))
    for phase in cell.preset.phases:
        by_entry_point = intent.commands[phase][len(environment.app()) :]
        lines.append(never_pulled(spec.container.command_line(intent.variables[phase], by_entry_point)))
    return "\n".join(lines)


def gpus_or_assumed(host: HostFacts) -> tuple[int, ...]:
    """Return the GPUs that training may use, those without a screen first; ASSUMED_GPUS if this host has none."""
    return tuple(headless_first(training_gpus(host))) or ASSUMED_GPUS


def nodes_or_assumed(chosen: tuple[int, ...], host: HostFacts, root: Path) -> tuple[DeviceNode, ...]:
    """Return the device nodes of GPUs; ASSUMED_NODES if this host has none of these GPUs.

    Raises:
        UserError: when a node is missing.
    """
    given = tuple(gpu for gpu in host.gpus if gpu.index in chosen)
    return gpu_devices(given, root) if given or not chosen else ASSUMED_NODES


def never_pulled(command: str) -> str:
    """Return a `docker run` command that never pulls its image, because anybody could publish one of that name."""
    return command.replace("docker run ", "docker run --pull never ", 1)


def best_cell(matrix: Matrix, host: HostFacts) -> Cell:
    """Return the cell that BEST stands for: the first plain one that can run here and suits the driver.

    Raises:
        UserError: when none can run here.
    """
    return first_plain_cell(matrix, capabilities_of(host, None, matrix.select("default"), None))


def command_in_cell(
    matrix: Matrix, cell_id: str, command: Sequence[str], notify: Notify, root: Path = Path("/")
) -> tuple[str, list[str], dict[str, str]]:
    """Return the program, arguments and variables that run a command of the app in a cell's environment.

    Raises:
        UserError: when the cell cannot run here, or the command is not `vpoc` or `python`.
    """
    if command[0] not in IN_CELL:
        typed = f"; type `python {shlex.join(command)}`" if command[0].endswith(".py") else ""
        raise UserError(f"{command[0]}: only {' and '.join(IN_CELL)} can be run in a cell's environment{typed}")
    if command[0] == "vpoc" and ASKS_HELP.intersection(command[1:]):
        # The help is the same in every cell, and printing it needs nothing that is installed in a cell.
        return (
            sys.executable,
            [sys.executable, *IN_CELL["vpoc"], *command[1:]],
            {**os.environ, "PYTHONPATH": str(APP), **VARIABLES["vpoc"]},
        )
    host = read_host(root)
    cell = best_cell(matrix, host) if cell_id == BEST else matrix.cells[cell_id]
    capabilities = capabilities_of(host, None, [cell], None)
    if reason := why_not(cell, capabilities, named=cell_id != BEST):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    environment = ensure_environment(cell.stack, notify)
    phase: Literal["features", "train"] = "features" if command[1:2] == ("features",) else "train"
    gpus = visible_devices(cell.preset.devices or capabilities.gpus[:1]) if environment.device == "cuda" else {}
    own = {**cell.preset.variables_of(phase), **gpus, **VARIABLES[command[0]]}
    variables = {**os.environ, **environment.variables, **own}
    python = str(environment.python)
    return python, [python, *IN_CELL[command[0]], *command[1:]], {**variables, "VPOC_DEVICE": environment.device}
