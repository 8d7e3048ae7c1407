"""Run one cell once, where it is least risky."""

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import InUseError, UserError
from harness.campaign.bench import Bench, BenchOptions, open_bench
from harness.campaign.dispatch import RunRequest
from harness.campaign.display import Display
from harness.campaign.plan import PendingRun, PlannedRun, placements, unfit
from harness.campaign.recovery import close_leftovers
from harness.campaign.runner import InterruptedRunError, Runner
from harness.environments.capabilities import capabilities_of, why_not
from harness.evidence.records import check_run_id, new_run_id
from harness.evidence.run_files import Record, Scheduled
from harness.matrix.cells import Cell, Workload


def run_one(options: BenchOptions, cell: Cell, workload: Workload, run_id: str | None, display: Display) -> Record:
    """Run a cell once; with the id of a run that was begun before, return its record instead.

    Raises:
        UserError: when the cell cannot run here, or the run of that id is another's.
        KeyboardInterrupt: after the run was recorded as interrupted.
    """
    if run_id:
        check_run_id(run_id)
    bench = open_bench(options, [cell])
    close_leftovers(bench, display)
    if run_id and (record := _record_of(bench, cell, run_id)):
        return record
    pending = PendingRun(first_run(bench, cell, workload), run_id or new_run_id(cell.id))
    try:
        _, record = Runner(bench, workload, display, total=1).run([pending])
    except InterruptedRunError as error:
        return error.record
    return record


def run_requested(options: BenchOptions, request: RunRequest, scheduled: Scheduled | None, display: Display) -> Record:
    """Make the run that another host asks for; one that was begun before has its record already.

    Raises:
        UserError: when it cannot be run here, or is being run.
        KeyboardInterrupt: after the run was recorded.
    """
    planned = request.planned
    bench = open_bench(options, [planned.cell])
    close_leftovers(bench, display)
    if record := _record_of(bench, planned.cell, request.run_id):
        return record
    runner = Runner(bench, request.workload, display, request.campaign, total=1)
    pending = PendingRun(planned, request.run_id)
    try:
        _, record = runner.run([pending], change=lambda run: replace(run, scheduled=scheduled))
    except InterruptedRunError as error:
        return error.record
    return record


def open_bench_for(
    options: BenchOptions, cells: Sequence[Cell], workload: Workload
) -> tuple[Bench, dict[str, PlannedRun]]:
    """Return the bench for these cells, and the run of each, by its id, where it is least risky.

    Raises:
        UserError: when one of them cannot run here.
    """
    bench = open_bench(options, cells)
    return bench, {cell.id: first_run(bench, cell, workload) for cell in cells}


def first_run(bench: Bench, cell: Cell, workload: Workload) -> PlannedRun:
    """Return the run of a cell where it is least risky.

    Raises:
        UserError: when the cell cannot run here.
    """
    able = capabilities_of(bench.host, bench.engine, [cell], bench.interpreter)
    if reason := why_not(cell, able, named=True) or unfit(cell, workload, bench.gpus):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    return placements(cell, workload, 1, bench.gpus)[0]


def _record_of(bench: Bench, cell: Cell, run_id: str) -> Record | None:
    """The record of a run of that id; None where there is no such run yet."""
    intent = bench.results.intent(run_id)
    if intent is None:
        return None
    if bench.results.imported(run_id):
        raise UserError(f"--run-id {run_id}: is a run that was imported; choose another id")
    if intent.cell != cell.id:
        raise UserError(f"--run-id {run_id}: is a run of {intent.cell}; choose another id")
    record = bench.results.record(run_id)
    if record is None:
        raise InUseError(f"--run-id {run_id}: is being run by process {intent.owner_pid}; wait for its record")
    return record
