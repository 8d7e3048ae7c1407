"""A cell for the user's own program: the variables it sets, a `docker run` line, and a devcontainer.json."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.paths import ENVIRONMENTS
from harness.campaign.by_hand import ASSUMED_NODES, NO_GPU_HERE, gpus_or_assumed, never_pulled, nodes_or_assumed
from harness.environments.docker.images import cell_tag
from harness.environments.executors.container import WORK, Container, container_of
from harness.environments.executors.pids import pids_limit
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell
from harness.run.launch import visible_devices


@dataclass(frozen=True)
class CellOutside:
    """The parts of a cell that can be used outside the harness.

    Attributes:
        variables: the variables that its preset sets in training, which its image already sets, and those that select
            its GPUs.
        python: the interpreter of its stack on this host; it exists once the environment was made.
        container: the permissions of a container of its image, with `work` as the only folder of the host that it can
            write to; None if the cell has no image.
        assumed_devices: no GPU was found on this host, so the device nodes are the usual ones.
    """

    cell: str
    variables: Mapping[str, str]
    python: Path
    container: Container | None
    assumed_devices: bool

    @property
    def dotenv(self) -> str:
        """The variables as lines of a .env file; nothing is quoted, so `docker run --env-file` reads it too."""
        return "".join(f"{name}={value}\n" for name, value in sorted(self.variables.items()))

    def docker_run(self) -> str:
        """Return the `docker run` command of a Python program in the current folder, with as few rights as possible.

        Raises:
            UserError: when the cell has no image.
        """
        line = never_pulled(self.contained.command_line({}, ("train.py",)))
        # Replace the entry point, because that of the image is the app.
        return line.replace(" --rm ", " --rm --entrypoint python --tmpfs /tmp ", 1)

    def devcontainer(self) -> dict[str, Any]:
        """Return the values of a devcontainer.json (containers.dev).

        The permissions are those of `docker_run`, but with a network and a writable root file system, because an editor
        fetches its server and installs it in the container.

        Raises:
            UserError: when the cell has no image.
        """
        box = self.contained
        return {
            "name": self.cell,
            "image": box.image,
            "init": True,
            "overrideCommand": True,
            "containerUser": f"{box.user}:{box.group}",
            "updateRemoteUserUID": False,
            "workspaceMount": f"source=${{localWorkspaceFolder}},target={WORK},type=bind",
            "workspaceFolder": str(WORK),
            "runArgs": list(box.permissions),
        }

    @property
    def contained(self) -> Container:
        """The permissions of the cell's container.

        Raises:
            UserError: when the cell has no image.
        """
        if self.container is None:
            raise UserError(f"cell {self.cell} only runs as a process: it has no image")
        return self.container


def cell_outside(cell: Cell, host: HostFacts, work: Path, root: Path) -> CellOutside:
    """Return the parts of a cell, with the GPUs of this host that its training may use; nothing is made.

    Raises:
        UserError: when the cell is excluded, or a device node of a GPU is missing.
    """
    if cell.excluded:
        raise UserError(f"cell {cell.id} is excluded: {cell.excluded}")
    on_gpus = cell.stack.accelerator == "rocm"
    chosen = (cell.preset.devices or gpus_or_assumed(host)) if on_gpus else ()
    nodes = nodes_or_assumed(chosen, host, root)
    container = None
    if "docker" in cell.stack.executors:
        alone = container_of(cell_tag(cell), work, (), host.memory_bytes)
        container = replace(alone, devices=nodes, pids=pids_limit(host.cores, max(1, len(chosen))))
    return CellOutside(
        cell=cell.id,
        variables={**cell.preset.variables_of("train"), **visible_devices(cell.preset.devices or ())},
        python=ENVIRONMENTS / cell.stack.name / "bin" / "python",
        container=container,
        assumed_devices=nodes is ASSUMED_NODES,
    )


def shell_lines(outside: CellOutside) -> str:
    """Return lines for `eval` in a shell: the variables, and other facts about the cell as comments."""
    lines = [f"# Cell {outside.cell}."]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(outside.variables.items())]
    lines += [] if outside.variables else ["# It sets no variable."]
    lines.append(f"# Its Python, made by `matrix exec {outside.cell} python -V`: {outside.python}")
    if outside.container:
        lines.append(f"# In its image, which `matrix build {outside.cell}` makes and which has the variables set:")
        if outside.assumed_devices:
            lines.append(f"# ({NO_GPU_HERE})")
        lines.append("# (Without `--network none` where your program fetches something.)")
        lines.append(f"# {outside.docker_run()}")
    return "\n".join(lines)
