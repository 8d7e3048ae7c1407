"""Runs one cell once, on the GPUs where that is least risky."""

from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import InUseError, UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.dispatch import RunRequest
from harness.campaign.bench.display import Display
from harness.campaign.bench.open_bench import BenchOptions, open_bench
from harness.campaign.bench.plan import PendingRun, PlannedRun, placements, why_unfit
from harness.campaign.recovery import close_leftovers
from harness.campaign.runner import InterruptedRunError, Runner
from harness.environments.capabilities import capabilities_of, why_not
from harness.environments.docker.node_images import bring_image
from harness.environments.verifier import Verifier
from harness.evidence.files.run_files import Record, Scheduled
from harness.evidence.records import check_run_id, new_run_id
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell
from harness.matrix.workloads import Workload
from harness.registry.saved.load import saved_archive
from harness.run.workload_data import read_data, synthetic_place
from harness.run.write_record import record_not_begun

ANOTHER_KIND = (
    "the host kind of its node has changed since the run was planned, for example by a boot with another kernel; "
    "the next command has a campaign for that kind, too"
)


def run_one(options: BenchOptions, cell: Cell, workload: Workload, run_id: str | None, display: Display) -> Record:
    """Run a cell once; if a run with this id was begun before, return its record instead.

    Raises:
        UserError: when the cell cannot run here, or the id is that of a run of another cell.
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
    """Make the run that another host requests; if it was begun before, return its record.

    Raises:
        UserError: when the run is not possible here, or is under way.
        KeyboardInterrupt: after the run was recorded.
    """
    planned = request.planned
    bench, lacks = _bench_of(options, request)
    close_leftovers(bench, display)
    if record := _record_of(bench, planned.cell, request.run_id):
        return record
    if request.kind not in (None, bench.host.kind):
        return _not_begun(bench, request, scheduled, ANOTHER_KIND)
    lacks = lacks or _take_images(bench, request, display.step)
    if lacks:
        return _not_begun(bench, request, scheduled, lacks)
    runner = Runner(bench, request.workload, display, request.campaign, total=1)
    pending = PendingRun(planned, request.run_id)
    try:
        _, record = runner.run([pending], change=lambda run: replace(run, scheduled=scheduled))
    except InterruptedRunError as error:
        return error.record
    return record


def _bench_of(options: BenchOptions, request: RunRequest) -> tuple[Bench, str | None]:
    """Return the bench for a run that another host requests, and why there is no engine for its container, if so."""
    try:
        return open_bench(options, [request.planned.cell]), None
    except UserError as error:
        if request.images is None:
            raise
        return open_bench(replace(options, executor="process"), []), str(error)


def _take_images(bench: Bench, request: RunRequest, notify: Notify) -> str | None:
    """Get the images of a run onto this host; return why that is impossible, or None if it worked or none is needed."""
    if request.images is None or bench.engine is None:
        return None
    cell, verifier = request.images.cell, request.images.verifier
    made = Verifier(missing=request.images.no_verifier)
    try:
        image = bring_image(bench.engine, cell, saved_archive, notify)
        if verifier and request.verifying:
            own = bring_image(bench.engine, verifier, saved_archive, notify)
            made = Verifier(verifier.environment(request.verifying, own.id))
    except UserError as error:
        return str(error)
    bench.use_environment(request.planned.cell, cell.environment(request.stack, image.id))
    bench.use_verifier(made)
    return None


def _not_begun(bench: Bench, request: RunRequest, scheduled: Scheduled | None, why: str) -> Record:
    """Record that this host lacks something that a run needs. The host that requested it checked all else."""
    if request.images:
        bench.use_environment(request.planned.cell, request.images.cell.environment(request.stack))
    if request.workload.program is None:
        bench.use_data(request.workload, read_data(bench.data or synthetic_place(request.workload)))
    run = bench.requested_run(request.planned, request.run_id, request.workload, request.campaign)
    return record_not_begun(replace(run, scheduled=scheduled), bench.results, why)


def open_bench_for(
    options: BenchOptions, cells: Sequence[Cell], workload: Workload
) -> tuple[Bench, dict[str, PlannedRun]]:
    """Return the bench for these cells, and the planned run of each, by its id, on the GPUs where it is least risky.

    Raises:
        UserError: when one of them cannot run here.
    """
    bench = open_bench(options, cells)
    return bench, {cell.id: first_run(bench, cell, workload) for cell in cells}


def first_run(bench: Bench, cell: Cell, workload: Workload) -> PlannedRun:
    """Return the planned run of a cell on the GPUs where it is least risky.

    Raises:
        UserError: when the cell cannot run here.
    """
    able = capabilities_of(bench.host, bench.engine, [cell], bench.interpreter)
    if reason := why_not(cell, able, named=True) or why_unfit(cell, workload, bench.gpus):
        raise UserError(f"cell {cell.id} cannot run here: {reason}")
    return placements(cell, workload, 1, bench.gpus)[0]


def _record_of(bench: Bench, cell: Cell, run_id: str) -> Record | None:
    """Return the record of the run with this id; None if there is no such run yet."""
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
