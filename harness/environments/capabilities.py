"""Capabilities of this host: the engine that cells run on, the interpreters, and the room on the disk."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.base.errors import NoEngineError
from harness.base.paths import ENVIRONMENTS
from harness.base.wording import many
from harness.environments.docker.images import inputs_of
from harness.environments.docker.own_images import (
    find_cell_image,
    find_own_stack_image,
    find_runtime_image,
    find_stack_image,
)
from harness.environments.environment import is_made
from harness.environments.python.interpreters import choose_python
from harness.host.disk_use import MOST_BYTES
from harness.host.engine import Engine, find_engine
from harness.host.facts import HostFacts
from harness.host.fingerprint import training_gpus
from harness.host.gpus.displays import headless_first
from harness.matrix.cells import Cell
from harness.matrix.stacks import ExecutorName, Stack
from harness.matrix.wheels import has_kernels

GB = 10**9
NO_KFD = "there is no /dev/kfd, which every ROCm program opens first"


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of this host.

    Attributes:
        gpus: indexes of the GPUs that wheels have kernels for, those without a screen first.
        free_bytes: the free space of the file system that holds images or environments; None if unknown.
        place: the folder of images or environments, or a name for it.
        wheels_beside: wheels are kept on the same file system.
        keeps_compressed: images are also kept compressed on that file system.
        made: the stacks that need nothing more.
        cores: the CPU cores that a run may use.
        targets: the targets of the GPUs.
        lacks: why no run can use the GPUs; None if nothing is missing.
        unused: the number of further GPUs, with a screen, that runs may not use.
        run_bytes: the most disk space that a run may take.
        verifying: the stack that runs are verified in, if it can be made here.
        driver: the version of AMD's own driver.
    """

    gpus: tuple[int, ...]
    executor: ExecutorName
    pythons: frozenset[str]
    free_bytes: int | None
    place: str = ""
    wheels_beside: bool = False
    keeps_compressed: bool = False
    made: frozenset[str] = frozenset()
    interpreter: str | None = None
    simulated: bool = False
    cores: int = 1
    targets: frozenset[str] = frozenset()
    lacks: str | None = None
    unused: int = 0
    run_bytes: int = MOST_BYTES
    verifying: Stack | None = None
    driver: str | None = None

    @property
    def sentence(self) -> str:
        """The findings, and what follows from them, in a sentence."""
        found = "On a simulated host, found" if self.simulated else "Found"
        gpus = many(len(self.gpus), "AMD GPU") if self.gpus else "no AMD GPU"
        if self.unused:
            gpus = f"{len(self.gpus) + self.unused} AMD GPUs ({self.unused} with a screen, which no run uses)"
        stacks = "the ROCm stacks run" if self.gpus else "the cpu stack runs"
        if self.lacks:
            return f"{found} {gpus}, but no ROCm stack can run: {self.lacks}."
        if self.executor == "docker":
            return f"{found} {gpus} and a Docker engine: {stacks}, in containers."
        return f"{found} {gpus}, no Docker engine is used: {stacks}, as processes in virtual environments."


@dataclass(frozen=True)
class StackRoom:
    """The needs of a stack. `fits`: whether the disk has room for it after those before it; None if unknown."""

    stack: str
    download_gb: float
    disk_gb: float
    fits: bool | None


@dataclass(frozen=True)
class Skipped:
    """A cell that is not run here. `of_host`: because of what this host is or lacks, which the doctor checks."""

    cell: Cell
    reason: str
    of_host: bool = True


def choose_engine(cells: Sequence[Cell], executor: ExecutorName | None) -> Engine | None:
    """Return the engine that cells are run on; None if they run as processes.

    Without `executor`, that is the engine that answers, unless no cell can run in a container.

    Raises:
        UserError: when a container was asked for and no engine answers, or this user may not use the engine.
    """
    contained = any("docker" in cell.stack.executors for cell in cells)
    if executor == "process" or (executor is None and not contained):
        return None
    engine = find_engine()
    if engine is None and executor == "docker":
        raise NoEngineError(
            "no Docker engine answers; start it (`sudo systemctl start docker`) or give --executor process"
        )
    return engine


def capabilities_of(
    host: HostFacts,
    engine: Engine | None,
    cells: Sequence[Cell],
    interpreter: Path | None,
    verifying: Stack | None = None,
) -> Capabilities:
    """Return the capabilities of this host for these cells, in containers if there is an engine.

    `verifying` is the stack that runs are verified in, which is always made here, even if an image of it was pulled.
    """
    stacks = {cell.stack.name: cell.stack for cell in cells if cell.stack.accelerator != "any" and not cell.excluded}
    if verifying and ("docker" if engine else "process") not in verifying.executors:
        verifying = None
    if verifying:
        stacks[verifying.name] = verifying
    cache = _existing(ENVIRONMENTS)
    of_host = partial(
        Capabilities,
        gpus=headless_first(training_gpus(host)),
        simulated=host.simulated,
        cores=host.cores,
        targets=frozenset(gpu.gfx for gpu in training_gpus(host)),
        verifying=verifying,
        driver=host.driver,
    )
    if engine:
        return of_host(
            executor="docker",
            pythons=frozenset(),
            free_bytes=shutil.disk_usage(engine.folder).free if engine.folder else None,
            place=str(engine.folder or "the engine's disk"),
            keeps_compressed=engine.keeps_compressed,
            wheels_beside=engine.folder is not None and engine.folder.stat().st_dev == cache.stat().st_dev,
            made=frozenset(name for name, stack in stacks.items() if _has_images(engine, stack, cells, verifying)),
        )
    return of_host(
        executor="process",
        pythons=frozenset(found[0] for stack in stacks.values() if (found := choose_python(stack))),
        free_bytes=shutil.disk_usage(cache).free,
        place=str(cache),
        made=frozenset(name for name, stack in stacks.items() if is_made(stack)),
        interpreter=str(interpreter) if interpreter else None,
    )


def why_not(cell: Cell, host: Capabilities, *, named: bool = False) -> str | None:
    """Return why a cell cannot run here; None if it can."""
    stack = cell.stack
    if cell.excluded:
        return cell.excluded
    if host.executor not in stack.executors:
        only = "in a container: it needs a Docker engine" if host.executor == "process" else "as a process"
        return f"this stack only runs {only}{'; give --executor process' if host.executor == 'docker' else ''}"
    if stack.accelerator == "any":
        return None if host.interpreter else "needs --python INTERPRETER, an interpreter with torch"
    if stack.accelerator == "rocm" and not host.gpus:
        return "needs an AMD GPU that the wheels have kernels for; none found"
    if stack.accelerator == "rocm" and host.lacks:
        return host.lacks
    if stack.rocm and not named and not _has_kernels(stack.rocm, cell, host):
        targets = ", ".join(sorted(host.targets))
        return f"the wheels of ROCm {stack.rocm} have no kernels for {targets}; name the cell to run it anyway"
    if stack.accelerator == "cpu" and host.gpus and not named:
        return "this host has AMD GPUs; name the cell to run it anyway"
    if any(gpu not in host.gpus for gpu in cell.preset.devices or ()) and stack.accelerator == "rocm":
        screen = "of which runs may not use the one with a screen; --use-screen-gpu lets them"
        lacking = screen if host.unused else "which are not all here"
        return f"its preset needs GPUs {', '.join(map(str, cell.preset.devices or ()))}, {lacking}"
    return None


def _has_kernels(rocm: str, cell: Cell, host: Capabilities) -> bool:
    """Return whether a stack's wheels have kernels for one of the host's GPUs, as far as their targets are known."""
    # A preset that overrides the target may find kernels of another target.
    overridden = any(name.startswith("HSA_OVERRIDE_GFX_VERSION") for name in cell.preset.variables)
    return overridden or not host.targets or any(has_kernels(rocm, target) for target in host.targets)


def room_needed(stacks: Iterable[Stack], host: Capabilities) -> tuple[float, float]:
    """Return what it takes to make these stacks' environments or images: GB to download, and GB of disk at the peak."""
    missing = {stack.name: stack.budget for stack in stacks if stack.name not in host.made}.values()
    download = sum(s.download for s in missing)
    disk = sum(s.disk for s in missing)
    if host.executor == "docker":
        # While a stack is built, the builder holds a copy of its wheels.
        disk += max((s.download for s in missing), default=0)
        disk += download * (host.wheels_beside + host.keeps_compressed)
    return download, disk


def stack_by_stack(stacks: Iterable[Stack], host: Capabilities) -> tuple[StackRoom, ...]:
    """Return the needs of stacks that are made in this order; those that do not fit leave their room to later ones."""
    left = None if host.free_bytes is None else host.free_bytes / GB
    found = []
    for stack in stacks:
        download, disk = room_needed([stack], host)
        fits = None if left is None else disk <= left
        if left is not None and fits:
            left -= disk
        found.append(StackRoom(stack.name, download, disk, fits))
    return tuple(found)


def has_kfd(root: Path) -> bool:
    """Return whether a host has /dev/kfd."""
    return (root / "dev/kfd").exists()


def with_kfd(host: Capabilities, *, there: bool) -> Capabilities:
    """Return the capabilities with or without /dev/kfd: if it is not `there`, no run can use a GPU."""
    return replace(host, lacks=None if there or not host.gpus else NO_KFD)


def _has_images(engine: Engine, stack: Stack, cells: Sequence[Cell], verifying: Stack | None) -> bool:
    """Return whether these cells need no download: all below the app is built, or their images were pulled."""
    inputs = inputs_of(engine, stack)
    if find_runtime_image(engine, inputs):
        return True
    if stack == verifying:
        return find_own_stack_image(engine, inputs) is not None
    pulled = (find_cell_image(engine, cell, inputs) for cell in cells if cell.stack == stack)
    return find_stack_image(engine, inputs) is not None or all(pulled)


def _existing(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())
