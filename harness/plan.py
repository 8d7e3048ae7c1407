"""What to run on this host, and what it will take. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from harness.contracts import ExecutorName
from harness.matrix import Cell, Stack, Workload
from harness.scheduling.goal import Goal
from harness.wheels import size

GB = 10**9


@dataclass(frozen=True)
class Capabilities:
    """What this host can do. `gpus` are those that wheels have kernels for, those without a screen first.

    `free_bytes` is what the filesystem has that holds images (or environments), None where that is not known;
    `wheels_beside` whether wheels are kept on the same one, `keeps_compressed` whether images are kept twice there.
    `made` are the stacks that need nothing more.
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

    @property
    def sentence(self) -> str:
        """What was found, and what is done about it."""
        gpus = f"{len(self.gpus)} AMD GPU{'s' * (len(self.gpus) > 1)}" if self.gpus else "no AMD GPU"
        stacks = "the ROCm stacks run" if self.gpus else "the cpu stack runs"
        if self.executor == "docker":
            return f"Found {gpus} and a Docker engine: {stacks}, in containers."
        return f"Found {gpus}, no Docker engine is used: {stacks}, as processes in virtual environments."


@dataclass(frozen=True)
class PlannedRun:
    """One run to be done; `repeat` counts from 1. `placement` tells it from the same on other GPUs."""

    cell: Cell
    repeat: int
    gpus: tuple[int, ...] = ()
    placement: str = ""


@dataclass(frozen=True)
class Skipped:
    """A cell that is not run here."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Plan:
    """Runs in order, cells left out with reasons, and what it all takes.

    With a goal, which run comes next is decided when the one before is known: `runs` are then what can be chosen from,
    and the seconds are those of a single run.
    """

    workload: Workload
    runs: tuple[PlannedRun, ...]
    skipped: tuple[Skipped, ...]
    download_gb: float
    disk_gb: float
    free_gb: float | None
    place: str
    seconds_at_most: float
    seconds_expected: float | None
    goal: Goal | None = None

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it, as far as that is known."""
        return self.free_gb is None or self.disk_gb <= self.free_gb


def room_needed(stacks: Iterable[Stack], host: Capabilities) -> tuple[float, float]:
    """What making the environments or images of these stacks takes: GB to download, and GB of disk at the peak."""
    missing = {stack.name: size(stack.accelerator) for stack in stacks if stack.name not in host.made}.values()
    download = sum(s.download for s in missing)
    disk = sum(s.disk for s in missing)
    if host.executor == "docker":
        # While a stack is built the builder holds a copy of its wheels.
        disk += max((s.download for s in missing), default=0)
        disk += download * (host.wheels_beside + host.keeps_compressed)
    return download, disk


def make_plan(
    cells: Iterable[Cell],
    workload: Workload,
    repeats: int,
    host: Capabilities,
    past_seconds: Mapping[str, list[float]],
    *,
    named: bool = False,
    goal: Goal | None = None,
) -> Plan:
    """Plan a campaign. `named`: the user named these very cells, so only what cannot run is left out.

    `past_seconds` holds the durations of earlier completed runs of the same workload on this kind of host, by cell;
    the time is expected only where there are such runs, everything else would be a guess.
    """
    cells = list(cells)
    skipped = [
        Skipped(cell, reason)
        for cell in cells
        if (reason := why_not(cell, host, named=named) or too_few_gpus(cell, workload, host.gpus))
    ]
    left_out = {s.cell.id for s in skipped}
    kept = [cell for cell in cells if cell.id not in left_out]
    rounds = (
        run
        for repeat in range(1, repeats + 1)
        for step in range(max(1, len(host.gpus)))
        for cell in kept
        for run in placements(cell, workload, repeat, host.gpus)[step : step + 1]
    )
    # What uses several GPUs at once hangs hosts most often: by then the rest has its records.
    runs = tuple(sorted(rounds, key=lambda run: len(run.gpus) > 1))
    download, disk = room_needed((cell.stack for cell in kept), host)
    counted = 1 if goal else len(runs)
    known = [median(past_seconds[cell.id]) for cell in kept if past_seconds.get(cell.id)]
    return Plan(
        workload=workload,
        runs=runs,
        skipped=tuple(skipped),
        download_gb=download,
        disk_gb=disk,
        free_gb=None if host.free_bytes is None else host.free_bytes / GB,
        place=host.place,
        seconds_at_most=float(counted * workload.time_limit),
        seconds_expected=median(known) * counted if known else None,
        goal=goal,
    )


def placements(cell: Cell, workload: Workload, repeat: int, gpus: tuple[int, ...]) -> list[PlannedRun]:
    """The runs of a cell on the GPUs of a host: `single` on each GPU alone, a strategy of several on all of them.

    A preset that names its devices keeps them.
    """
    if cell.stack.accelerator != "rocm":
        return [PlannedRun(cell, repeat, gpus[:1])]
    if cell.preset.devices:
        return [PlannedRun(cell, repeat, cell.preset.devices)]
    if workload.strategy != "single":
        return [PlannedRun(cell, repeat, tuple(sorted(gpus)))]
    return [PlannedRun(cell, repeat, (gpu,), f"-gpu{gpu}" if len(gpus) > 1 else "") for gpu in gpus]


def why_not(cell: Cell, host: Capabilities, *, named: bool = False) -> str | None:
    """Why a cell cannot run here; None where it can."""
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
    if stack.accelerator == "cpu" and host.gpus and not named:
        return "this host has AMD GPUs; name the cell to run it all the same"
    if host.executor == "process" and stack.python not in host.pythons:
        return missing_python(stack.python)
    if any(gpu not in host.gpus for gpu in cell.preset.devices or ()) and stack.accelerator == "rocm":
        return f"its preset wants GPUs {', '.join(map(str, cell.preset.devices or ()))}, which are not all here"
    return None


def too_few_gpus(cell: Cell, workload: Workload, gpus: tuple[int, ...]) -> str | None:
    """Why the strategy of a workload cannot use several GPUs in a cell; None where it can, or needs none."""
    if workload.strategy == "single" or cell.stack.accelerator != "rocm" or len(cell.preset.devices or gpus) > 1:
        return None
    given = "its preset gives it one" if cell.preset.devices else "this host has one"
    return f"strategy {workload.strategy} needs two GPUs; {given}"


def missing_python(version: str) -> str:
    """What to say where an interpreter is missing."""
    return f"Python {version} is not installed; try `.venv/bin/uv python install {version}`"
