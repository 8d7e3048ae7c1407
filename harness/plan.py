"""What to run on this host, and what it will take. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from harness.matrix import Cell, Workload
from harness.wheels import size

GB = 10**9


@dataclass(frozen=True)
class Capabilities:
    """What this host can do. `gpus` are those that wheels have kernels for."""

    gpus: tuple[int, ...]
    docker: bool
    pythons: frozenset[str]
    free_bytes: int
    made: frozenset[str] = frozenset()
    interpreter: str | None = None

    @property
    def sentence(self) -> str:
        """What was found, and what is done about it."""
        gpus = f"{len(self.gpus)} AMD GPU" if self.gpus else "no AMD GPU"
        engine = "a Docker engine (not used)" if self.docker else "no Docker engine"
        stacks = "the ROCm stacks run" if self.gpus else "the cpu stack runs"
        return f"Found {gpus} and {engine}: {stacks}, as processes in virtual environments."


@dataclass(frozen=True)
class PlannedRun:
    """One run to be done; `repeat` counts from 1."""

    cell: Cell
    repeat: int


@dataclass(frozen=True)
class Skipped:
    """A cell that is not run here."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Plan:
    """Runs in order, cells left out with reasons, and what it all takes."""

    workload: Workload
    runs: tuple[PlannedRun, ...]
    skipped: tuple[Skipped, ...]
    download_gb: float
    disk_gb: float
    free_gb: float
    seconds_at_most: float
    seconds_expected: float | None

    @property
    def fits(self) -> bool:
        """Whether the disk has room for it."""
        return self.disk_gb <= self.free_gb


def make_plan(
    cells: Iterable[Cell],
    workload: Workload,
    repeats: int,
    host: Capabilities,
    past_seconds: Mapping[str, list[float]],
    *,
    named: bool = False,
) -> Plan:
    """Plan a campaign. `named`: the user named these very cells, so only what cannot run is left out.

    `past_seconds` holds the durations of earlier completed runs of the same workload on this kind of host, by cell;
    the time is expected only where there are such runs, everything else would be a guess.
    """
    cells = list(cells)
    skipped = [Skipped(cell, reason) for cell in cells if (reason := why_not(cell, host, named=named))]
    left_out = {s.cell.id for s in skipped}
    kept = [cell for cell in cells if cell.id not in left_out]
    runs = tuple(PlannedRun(cell, repeat) for repeat in range(1, repeats + 1) for cell in kept)
    to_make = {c.stack.name: size(c.stack.accelerator) for c in kept if c.stack.name not in host.made}
    known = [median(past_seconds[cell.id]) for cell in kept if past_seconds.get(cell.id)]
    return Plan(
        workload=workload,
        runs=runs,
        skipped=tuple(skipped),
        download_gb=sum(s.download for s in to_make.values()),
        disk_gb=sum(s.disk for s in to_make.values()),
        free_gb=host.free_bytes / GB,
        seconds_at_most=float(len(runs) * workload.time_limit),
        seconds_expected=median(known) * len(runs) if known else None,
    )


def why_not(cell: Cell, host: Capabilities, *, named: bool = False) -> str | None:
    """Why a cell cannot run here; None where it can."""
    stack = cell.stack
    if cell.excluded:
        return cell.excluded
    if "process" not in stack.executors:
        return "this stack only runs as a container"
    if stack.accelerator == "any":
        return None if host.interpreter else "needs --python INTERPRETER, an interpreter with torch"
    if stack.accelerator == "rocm" and not host.gpus:
        return "needs an AMD GPU that the wheels have kernels for; none found"
    if stack.accelerator == "cpu" and host.gpus and not named:
        return "this host has AMD GPUs; name the cell to run it all the same"
    if stack.python not in host.pythons:
        return missing_python(stack.python)
    if any(gpu not in host.gpus for gpu in cell.preset.devices or ()) and stack.accelerator == "rocm":
        return f"its preset wants GPUs {', '.join(map(str, cell.preset.devices or ()))}, which are not all here"
    return None


def missing_python(version: str) -> str:
    """What to say where an interpreter is missing."""
    return f"Python {version} is not installed; try `.venv/bin/uv python install {version}`"
