"""Plans the runs of a campaign on this host, and computes the disk space and time that they take. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median

from harness.base.errors import NoSpaceError, UserError
from harness.base.wording import size_in_words
from harness.doctor.compatibility import is_outside
from harness.environments.capabilities import GB, Capabilities, Skipped, room_needed, why_not
from harness.environments.executors.pids import pids_limit
from harness.host.disk_use import MOST_BYTES
from harness.matrix.cells import Cell, Matrix
from harness.matrix.refusals import why_refused
from harness.matrix.requirements import contradiction
from harness.matrix.stacks import Stack
from harness.matrix.workload_options import device_count
from harness.matrix.workloads import Workload
from harness.search.fault_isolation import MOST_RUNS
from harness.search.goal import Goal

NOTHING_RUNS = "`matrix doctor` says what to fix, `matrix plan` alone what runs here"
# The name that stands for the cell that `first_plain_cell` returns.
BEST = "best"


@dataclass(frozen=True)
class PlannedRun:
    """One run to be made. `repeat` counts from 1; `placement` distinguishes the same repeat on different GPUs."""

    cell: Cell
    repeat: int
    gpus: tuple[int, ...] = ()
    placement: str = ""


@dataclass(frozen=True)
class PendingRun:
    """A planned run that is still to be run, and the id that it will have.

    `position` is its number among all runs of the campaign, from 1.
    """

    planned: PlannedRun
    run_id: str
    position: int = 1

    @property
    def cell(self) -> Cell:
        """The cell that is run."""
        return self.planned.cell


@dataclass(frozen=True)
class Plan:
    """Runs in order, cells left out with reasons, and what the runs take in space and time.

    With a `goal`, the next run is chosen when the result of the one before is known: `runs` are then the candidates,
    and the seconds are those of a single run.

    Attributes:
        pids: the most processes and threads of any run; None if nothing limits them.
        controls: the most further runs that are added if failures appear that a GPU or the host can cause.
        side_by_side: runs on one GPU each, of the same cell and repeat, run at the same time.
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
    pythons_to_fetch: tuple[str, ...] = ()
    pids: int | None = None
    controls: int = 0
    side_by_side: bool = False
    run_bytes: int = MOST_BYTES

    @property
    def indexes(self) -> dict[str, str]:
        """The wheel index of each stack of the plan that shows one, by the name of the stack."""
        stacks = (planned.cell.stack for planned in self.runs)
        return {stack.name: stack.shown_index for stack in stacks if stack.shown_index}

    @property
    def fits(self) -> bool:
        """Return whether the disk has room for the plan, as far as that is known."""
        return self.free_gb is None or self.disk_gb <= self.free_gb

    @property
    def why_empty(self) -> str | None:
        """Return why there is nothing to run; None if there is something."""
        if self.runs:
            return None
        reasons = sorted({skipped.reason for skipped in self.skipped})
        where = " on this host" if self.host_excludes_cells else ""
        return f"no cell can run{where}: {'; '.join(reasons) or 'none was chosen'}"

    @property
    def host_excludes_cells(self) -> bool:
        """Return whether a cell is left out for what this host is or lacks: only then can `matrix doctor` help."""
        return any(skipped.of_host for skipped in self.skipped)

    def check_feasible(self) -> None:
        """Refuse a plan with nothing to run, or with no room for it.

        Raises:
            UserError: saying which.
        """
        if self.why_empty:
            raise UserError(f"{self.why_empty}; {NOTHING_RUNS}" if self.host_excludes_cells else self.why_empty)
        if not self.fits:
            needed, free = (size_in_words(gb * GB) for gb in (self.disk_gb, self.free_gb or 0))
            raise NoSpaceError(
                f"{self.place}: the plan needs {needed}, {free} are free; free some or choose fewer stacks"
            )


def rounds_of(runs: Sequence[PlannedRun], *, side_by_side: bool) -> int:
    """Return how many rounds these runs take; with `side_by_side`, the runs of a cell and a repeat share a round."""
    return len({(one.cell.id, one.repeat) for one in runs}) if side_by_side else len(runs)


def make_plan(
    cells: Iterable[Cell],
    workload: Workload,
    repeats: int,
    host: Capabilities,
    past_seconds: Mapping[str, list[float]],
    *,
    named: bool = False,
    goal: Goal | None = None,
    controls: bool = False,
    side_by_side: bool = False,
) -> Plan:
    """Plan a campaign.

    - `past_seconds`: durations of earlier completed runs of the same workload on this kind of host, by cell. An
      expected time is only given if there are such runs; anything else would be a guess.
    - `named`: the user named these very cells, so only cells that cannot run are left out.
    - `controls`: where cells fail repeatedly in ways that a GPU or the host can cause, runs are added to find the
      cause.
    - `side_by_side`: the host allows runs on one GPU each to run at the same time.
    """
    cells = list(cells)
    skipped = [one for cell in cells if (one := _skipped(cell, workload, host, named=named))]
    left_out = {s.cell.id for s in skipped}
    kept = [cell for cell in cells if cell.id not in left_out]
    by_cell = ([placements(cell, workload, repeat, host.gpus) for cell in kept] for repeat in range(1, repeats + 1))
    # If runs are not side by side, every cell runs on the first GPU before any cell runs on the next one.
    in_turn = (run for placed in by_cell for runs in (placed if side_by_side else zip_longest(*placed)) for run in runs)
    # Runs on several GPUs hang hosts most often, so they come last, when all other runs have their records.
    runs = tuple(sorted(filter(None, in_turn), key=lambda run: len(run.gpus) > 1))
    stacks = [cell.stack for cell in kept]
    if stacks and host.verifying:
        stacks.append(host.verifying)
    download, disk = room_needed(stacks, host)
    rounds = rounds_of(runs, side_by_side=side_by_side)
    counted = 1 if goal else rounds
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
        pythons_to_fetch=pythons_to_fetch(stacks, host),
        pids=_pids(runs, workload, host),
        controls=MOST_RUNS if controls and repeats > 1 and not goal and any(map(_on_gpu, runs)) else 0,
        side_by_side=rounds < len(runs),
        run_bytes=host.run_bytes,
    )


def _skipped(cell: Cell, workload: Workload, host: Capabilities, *, named: bool) -> Skipped | None:
    if reason := why_not(cell, host, named=named):
        # The host is the reason for ROCm cells only: other cells lack an option, or have to be named.
        return Skipped(cell, reason, of_host=cell.stack.accelerator == "rocm" and not cell.excluded)
    if reason := why_unfit(cell, workload, host.gpus):
        few = reason == why_too_few_gpus(cell, workload, host.gpus)
        if few and host.unused and not cell.preset.devices:
            reason = f"{reason} that runs may use; --use-screen-gpu lets them use the one with a screen"
        return Skipped(cell, reason, of_host=few and not cell.preset.devices)
    return None


def _on_gpu(run: PlannedRun) -> bool:
    return bool(run.gpus) and run.cell.stack.accelerator == "rocm"


def _pids(runs: Iterable[PlannedRun], workload: Workload, host: Capabilities) -> int | None:
    if host.executor != "docker":
        return None
    devices = (device_count(workload, "cuda" if run.gpus else "cpu", run.gpus) for run in runs)
    return pids_limit(host.cores, max(devices, default=1))


def placements(cell: Cell, workload: Workload, repeat: int, gpus: tuple[int, ...]) -> list[PlannedRun]:
    """Return the runs of a cell on the GPUs of a host: for `single` one on each GPU, otherwise one on all GPUs.

    A preset that names its devices keeps them.
    """
    if cell.stack.accelerator != "rocm":
        return [PlannedRun(cell, repeat, gpus[:1])]
    if cell.preset.devices:
        return [PlannedRun(cell, repeat, cell.preset.devices)]
    if workload.strategy != "single":
        return [PlannedRun(cell, repeat, tuple(sorted(gpus)))]
    return [PlannedRun(cell, repeat, (gpu,), f"-gpu{gpu}" if len(gpus) > 1 else "") for gpu in gpus]


def why_unfit(cell: Cell, workload: Workload, gpus: tuple[int, ...]) -> str | None:
    """Return why a cell cannot run a workload; None if it can."""
    if workload.program:
        return contradiction(workload.program, cell.stack) or why_too_few_gpus(cell, workload, gpus)
    if cell.stack.jax:
        asked = (workload.model, workload.strategy, workload.loop, workload.use_mixed_precision)
        parts = workload.micro_batch_size or workload.activation_checkpointing
        if asked != (("mlp",), "single", "plain", False) or parts:
            return (
                f"JAX trains mlp in float32 on one device, but workload {workload.name} asks for something else; "
                "give --workload frameworks"
            )
        if cell.stack.accelerator != "cpu" and workload.vpoc_path != "cpu":
            return f"JAX has no VPOC phase on a GPU, but workload {workload.name} has one; give --workload frameworks"
    return why_refused(cell, workload) or why_too_few_gpus(cell, workload, gpus)


def why_too_few_gpus(cell: Cell, workload: Workload, gpus: tuple[int, ...]) -> str | None:
    """Return why the workload's strategy lacks GPUs in a cell; None if it has several, or needs only one."""
    if workload.strategy == "single" or cell.stack.accelerator != "rocm" or len(cell.preset.devices or gpus) > 1:
        return None
    given = "its preset gives it one" if cell.preset.devices else "this host has one"
    return f"strategy {workload.strategy} needs two GPUs; {given}"


def first_plain_cell(matrix: Matrix, able: Capabilities) -> Cell:
    """Return the first plain cell that can run here, preferably with a ROCm that this host's driver supports.

    Raises:
        UserError: when none can run here, with the reason of the first.
    """
    cells = [cell for cell in matrix.select("default") if cell.preset.name == "plain"]
    can = [cell for cell in cells if why_not(cell, able) is None]
    if can:
        return min(can, key=lambda cell: is_outside(able.driver, cell.stack))
    raise UserError(f"cell {cells[0].id} cannot run here: {why_not(cells[0], able)}")


def plain_cpu_cell(matrix: Matrix) -> Cell | None:
    """Return the cell of a CPU stack that sets no variables, the last resort of a training; None if there is none."""
    cells = (
        cell
        for cell in matrix.cells.values()
        if cell.stack.accelerator == "cpu" and not (cell.excluded or cell.stack.jax)
    )
    return next((c for c in cells if not c.preset.variables and c.preset.phases == ("train",)), None)


def pythons_to_fetch(stacks: Iterable[Stack], host: Capabilities) -> tuple[str, ...]:
    """Return the Python versions that uv has to fetch: those of the stacks that can use no Python of this host."""
    if host.executor == "docker":
        return ()
    lacking = (s for s in stacks if s.accelerator != "any" and not host.pythons.intersection(s.pythons))
    return tuple(dict.fromkeys(stack.python for stack in lacking))
