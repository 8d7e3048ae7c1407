"""The commands that run a cell without the harness: a docker command, or one in the cell's environment."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness.base.errors import UserError
from harness.campaign.bench import BenchOptions, open_bench
from harness.campaign.plan import first_plain_cell
from harness.campaign.run_one import first_run
from harness.environments.capabilities import capabilities_of, why_not
from harness.environments.environment import ensure_environment
from harness.environments.images import cell_tag
from harness.evidence.run_folder import RunFolder
from harness.host.engine import Notify
from harness.host.fingerprint import read_host
from harness.matrix.cells import Cell, Matrix, Workload
from harness.run.spec import resolve_run, visible_devices

# What `matrix exec` runs, as arguments of the interpreter.
PROGRAMS = {"vpoc": ("-m", "vpoc"), "python": ()}


def docker_command(options: BenchOptions, cell: Cell, workload: Workload, notify: Notify) -> str:
    """Return the `docker run` that trains a cell by hand as a run would, in a folder to be chosen.

    Raises:
        UserError: when there is no engine, or the image cannot be built.
    """
    bench = open_bench(replace(options, executor="docker", interpreter=None), [cell])
    planned = first_run(bench, cell, workload)
    bench.environment(cell, notify)
    run = bench.run(planned, "by-hand", workload)
    spec = resolve_run(run, RunFolder(bench.results.folder / "by-hand"))
    intent, container, work = spec.intent, spec.container, spec.folder.work
    if container is None:
        raise UserError(f"cell {cell.id} only runs as a process")
    lines = [shlex.join(["mkdir", "-p", *map(str, (work.output, *work.places))])]
    for phase in cell.preset.phases:
        words = intent.commands[phase]
        by_entry_point = words[len(run.environment.app()) :]
        named = replace(container, image=cell_tag(cell))
        lines.append(named.command_line(intent.variables[phase], by_entry_point))
    return "\n".join(lines)


def command_in_cell(
    matrix: Matrix, cell_id: str, command: Sequence[str], notify: Notify, root: Path = Path("/")
) -> tuple[str, list[str], dict[str, str]]:
    """Return program, arguments and environment of a command of the app in a cell's environment.

    Raises:
        UserError: when the cell cannot run here, or the command is not `vpoc` or `python`.
    """
    best = cell_id == "best"
    chosen = matrix.select("default") if best else [matrix.cells[cell_id]]
    capabilities = capabilities_of(read_host(root), None, chosen, None)
    cell = first_plain_cell(matrix, capabilities) if best else chosen[0]
    if reason := why_not(cell, capabilities, named=not best):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    if command[0] not in PROGRAMS:
        raise UserError(f"{command[0]}: only {' and '.join(PROGRAMS)} can be run in a cell's environment")
    environment = ensure_environment(cell.stack, notify)
    phase: Literal["features", "train"] = "features" if command[1:2] == ("features",) else "train"
    gpus = visible_devices(cell.preset.devices or capabilities.gpus[:1]) if environment.device == "cuda" else {}
    variables = {**os.environ, **environment.variables, **cell.preset.variables_of(phase), **gpus}
    python = str(environment.python)
    return python, [python, *PROGRAMS[command[0]], *command[1:]], {**variables, "VPOC_DEVICE": environment.device}
