"""Looks at this host and plans the runs of a campaign."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.base.errors import NoSpaceError
from harness.base.files.hashes import file_hash
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import Plan, make_plan
from harness.campaign.planning.screen_gpus import gpus_in_question
from harness.campaign.planning.tallies import Tallies
from harness.doctor.disk_order import disk_order
from harness.doctor.read import read_machine
from harness.doctor.side_by_side import why_not_side_by_side
from harness.environments.capabilities import GB, Capabilities, capabilities_of, has_kfd, with_kfd
from harness.evidence.index import Index
from harness.evidence.row import SYNTHETIC, name_of_data
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import counts_of
from harness.evidence.verdicts.verdict import Verdict
from harness.host.disk_use import DiskLimit
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stacks import Stack
from harness.matrix.stages import exploring
from harness.matrix.variants import VARIANT
from harness.matrix.workload_options import workload_hash
from harness.matrix.workloads import Workload
from harness.run.workload_data import require_sessions, synthetic_place
from harness.search.goal import Goal
from harness.search.stages.runs import StageHost
from harness.search.stages.search import StageSearch

# Assumed speeds: a line of 100 Mbit/s and a slow disk. The plan and the forecast say so.
ASSUMED_BYTES_PER_SECOND = 12.5e6
ASSUMED_BUILD_SECONDS = 240.0


@dataclass(frozen=True)
class PreparedCampaign:
    """A plan with everything that is needed to run it. With `stages`, its runs are decided one after the other.

    `screened`: the GPUs with a screen that no run may use.
    """

    plan: Plan
    capabilities: Capabilities
    bench: Bench
    matrix: Matrix
    stages: StageSearch | None = None
    screened: tuple[int, ...] = ()

    def verdicts_here(self) -> list[Verdict]:
        """Return the verdicts on the cells and the workload family of the plan, for its data and this kind of host.

        In stages they are on all workloads, because each stage has its own, and on further presets of the same stacks,
        because a stage tries others where the plan's fail.
        """
        tallies = Tallies(self.plan, self.bench, self.matrix)
        planned = self.plan.runs
        families, cells = {tallies.family_of(one) for one in planned}, {one.cell.id for one in planned}
        stacks = {one.cell.stack.name for one in planned}
        data = name_of_data(str(self.bench.data.resolve())) if self.bench.data else SYNTHETIC
        mine = ("" if self.plan.workload.program else data, self.bench.host.kind, self.capabilities.executor)
        everything = Index(self.bench.results).rows()
        here = [row for row in everything if (row.data, row.host_kind, row.executor) == mine]
        if self.stages:
            # Variants of cells are made by a search of `matrix minimise`, or by a training.
            rows = [row for row in here if row.stack in stacks and VARIANT not in row.cell]
        else:
            rows = [row for row in here if row.cell in cells and row.family in families]
        return of_results.verdicts_on(rows, self.matrix, counts_of(self.bench.results, everything), self.bench.host)


def prepare_campaign(
    options: BenchOptions,
    matrix: Matrix,
    cells: Sequence[Cell],
    workload: Workload,
    repeats: int,
    *,
    goal: Goal | None,
    named: bool,
    controls: bool,
    may_use_screens: Callable[[HostFacts], bool] = lambda _: True,
) -> PreparedCampaign:
    """Look at this host and plan the runs.

    `named`, `controls` as in `make_plan`; `may_use_screens` as in `prepare_stages`.

    Raises:
        UserError: when the data or the interpreter does not exist, or the data have too few sessions.
    """
    bench, screened = _without_screens(open_bench(options, cells), may_use_screens)
    _require_sessions(bench, [workload])
    capabilities = _capabilities(bench, cells, screened)
    past = _past_seconds(bench, workload)
    # The host is only asked where there are several GPUs; of a scheduler's hosts nothing is known here.
    side_by_side = (
        bench.dispatcher is None
        and len(bench.gpus) > 1
        and why_not_side_by_side(read_machine(matrix, bench.root), bench.gpus) is None
    )
    plan = make_plan(
        cells,
        workload,
        repeats,
        capabilities,
        past,
        named=named,
        goal=goal,
        controls=controls,
        side_by_side=side_by_side,
    )
    return PreparedCampaign(plan, capabilities, bench, matrix, screened=screened)


def prepare_stages(
    options: BenchOptions,
    matrix: Matrix,
    selection: str,
    budget: float,
    may_use_screens: Callable[[HostFacts], bool] = lambda _: True,
) -> PreparedCampaign | None:
    """Look at this host and plan a campaign in stages; None if the host has no GPU, or the matrix file no stages.

    `budget` is in seconds. `may_use_screens` returns whether runs may use GPUs with a screen if other GPUs have none.

    Raises:
        UserError: when the data or the interpreter does not exist, or the data have too few sessions.
    """
    chosen = matrix.select(selection)
    stages = exploring(matrix.stages)
    bench = open_bench(options, chosen)
    if not stages or not bench.gpus:
        return None
    _require_sessions(bench, [matrix.workloads[one.workload] for one in stages if one.workload])
    bench, screened = _without_screens(bench, may_use_screens)
    capabilities = _capabilities(bench, chosen, screened)
    thresholds = matrix.verdicts
    goal = Goal(thresholds.good, thresholds.confidence, budget=budget, mtbf_hours=thresholds.mtbf_hours.good)
    plan = make_plan(chosen, matrix.workloads[stages[0].workload or ""], 1, capabilities, {}, goal=goal)
    cells: dict[str, list[Cell]] = {}
    for cell in {planned.cell.id: planned.cell for planned in plan.runs}.values():
        cells.setdefault(cell.stack.name, []).append(cell)
    first = [bench.verifying] if bench.verifying else []
    # The doctor only knows this host, not the hosts of a scheduler.
    machine = None if bench.dispatcher else read_machine(matrix, bench.root)
    atomics = [gpu.atomics for gpu in (machine.gpus if machine else ()) if gpu.facts.index in bench.gpus]
    turns = disk_order(matrix, cells, first, capabilities, atomics)
    cells = {stack.name: cells[stack.name] for stack in turns}
    setup = {name: setup_seconds_of(own[0].stack) for name, own in cells.items() if name not in capabilities.made}
    host = StageHost(
        bench.gpus,
        bench.gpus,
        setup,
        side_by_side=machine is not None and why_not_side_by_side(machine, bench.gpus) is None,
        screened=screened,
        attempts_since=None if bench.dispatcher else time.time(),
    )
    return PreparedCampaign(plan, capabilities, bench, matrix, StageSearch(matrix, cells, host), screened)


def _without_screens(bench: Bench, may_use_screens: Callable[[HostFacts], bool]) -> tuple[Bench, tuple[int, ...]]:
    """Return the bench without the GPUs with a screen that runs may not use, and the numbers of these GPUs."""
    if may_use_screens(bench.host):
        return bench, ()
    screened = tuple(gpu.index for gpu in gpus_in_question(bench.host))
    return replace(bench, gpus=tuple(gpu for gpu in bench.gpus if gpu not in screened)), screened


def _capabilities(bench: Bench, cells: Sequence[Cell], screened: tuple[int, ...]) -> Capabilities:
    found = capabilities_of(bench.host, bench.engine, cells, bench.interpreter, bench.verifying)
    found = replace(found, gpus=bench.gpus, unused=len(screened), run_bytes=_run_bytes(bench))
    return with_kfd(found, there=_has_kfd(bench))


def _require_sessions(bench: Bench, workloads: Sequence[Workload]) -> None:
    for one in workloads if bench.data else ():
        if bench.data and not one.program:
            require_sessions(bench.data, one)


def _run_bytes(bench: Bench) -> int:
    if not (most := DiskLimit.of(bench.results.runs).bytes):
        raise NoSpaceError(
            f"{bench.results.folder}: no free space for the files of runs; free some, or give another --results"
        )
    return most


def _has_kfd(bench: Bench) -> bool:
    """Return whether ROCm's device node exists; the hosts of a scheduler that have GPUs are assumed to have it."""
    return bool(bench.dispatcher and bench.host.gpus) or has_kfd(bench.root)


def setup_seconds_of(stack: Stack) -> float:
    """Return the seconds that downloading and building a stack is assumed to take."""
    return stack.budget.download * GB / ASSUMED_BYTES_PER_SECOND + ASSUMED_BUILD_SECONDS


def _past_seconds(bench: Bench, workload: Workload) -> dict[str, list[float]]:
    """Return the seconds of completed runs of exactly this work, made on this host with this executor, by cell.

    The result is empty if the data have not been made yet.
    """
    if workload.program:
        version = workload.program.taken.version if workload.program.taken else ""
    else:
        data = bench.data or synthetic_place(workload)
        if not data.is_file():
            return {}
        version = file_hash(data)
    past: dict[str, list[float]] = {}
    known = ("completed", workload_hash(workload, version), bench.host.fingerprint, bench.executor_name)
    for row in Index(bench.results).rows():
        if (row.outcome, row.workload_hash, row.host_fingerprint, row.executor) == known and not row.imported:
            past.setdefault(row.cell, []).append(row.seconds)
    return past
