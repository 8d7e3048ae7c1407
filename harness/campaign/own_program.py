"""A cell for a program of one's own: the variables it sets, a `docker run` line, a devcontainer.json."""

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
    """The parts of a cell outside the harness.

    `variables`: those of its preset in training, which its image has set already, and the GPUs that it uses.
    `python`: the interpreter of its stack on this host, once that was made. `container`: the permissions of a
    container of its image, with `work` as the one folder of the host that can be written to; None where it has none.
    `assumed_devices`: no GPU was found here, and the device nodes are those of one that is usual.
    """

    cell: str
    variables: Mapping[str, str]
    python: Path
    container: Container | None
    assumed_devices: bool = False

    @property
    def dotenv(self) -> str:
        """The variables as lines of a .env file, which `docker run --env-file` takes too: nothing is quoted."""
        return "".join(f"{name}={value}\n" for name, value in sorted(self.variables.items()))

    def docker_run(self) -> str:
        """The `docker run` of a Python program in the current folder, with as few permissions as training needs.

        Raises:
            UserError: when the cell has no image.
        """
        line = never_pulled(self.contained.command_line({}, ("train.py",)))
        # The image's own entry point is the app.
        return line.replace(" --rm ", " --rm --entrypoint python --tmpfs /tmp ", 1)

    def devcontainer(self) -> dict[str, Any]:
        """The values of a devcontainer.json (containers.dev): the same permissions, but network and a root to write to.

        An editor fetches its server, and installs it in the container.

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
        """The permissions of its container.

        Raises:
            UserError: when the cell has no image.
        """
        if self.container is None:
            raise UserError(f"cell {self.cell} only runs as a process: it has no image")
        return self.container


def cell_outside(cell: Cell, host: HostFacts, work: Path, root: Path) -> CellOutside:
    """Return what a cell consists of, with the GPUs of this host that a training of it may use; nothing is made.

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
    """Return lines for `eval` of a shell: the variables, and what else there is to know as comments."""
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
