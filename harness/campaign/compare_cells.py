"""Makes the runs that a comparison of cells lacks."""

from collections.abc import Mapping
from itertools import count
from random import Random

from harness.campaign.bench import Bench, Display
from harness.campaign.commands import settle
from harness.campaign.plan import PlannedRun
from harness.campaign.trials import TaintedError, Trials
from harness.evidence.index import Index
from harness.evidence.records import new_run_id
from harness.evidence.unhealthy_gpu_runs import tainted_runs
from harness.evidence.verdicts.scope import scope_of
from harness.evidence.verdicts.verdict import COUNTED
from harness.matrix.cells import Workload
from harness.run.spec import Run


def add_runs(bench: Bench, placed: Mapping[str, PlannedRun], workload: Workload, runs: int, display: Display) -> str:
    """Make runs until each cell has so many that count, those made before included; returns the workload's hash.

    `placed` is a run of each cell. Each round runs the cells in another order: what drifts with time must not favour
    one of them.

    Raises:
        UserError: when the host cannot go on.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    settle(bench, display)
    wanted = {}
    for cell, planned in placed.items():
        display.preparing(planned.cell.stack)
        bench.data_of(workload, bench.environment(planned.cell, display.step))
        wanted[cell] = bench.run(planned, "compare", workload)
    lacking = {cell: max(0, runs - _counted(bench, run)) for cell, run in wanted.items()}
    campaign, positions, total = new_run_id("compare"), count(1), sum(lacking.values())
    trials = {cell: Trials(bench, workload, planned, display, campaign, total) for cell, planned in placed.items()}
    random = Random()  # noqa: S311
    while short := [cell for cell, run in wanted.items() if _counted(bench, run) < runs]:
        for cell in random.sample(short, len(short)):
            try:
                trials[cell].passed(placed[cell].cell, next(positions))
            except TaintedError:
                # What counts is counted anew in the next round.
                continue
    return next(iter(wanted.values())).workload_hash


def _counted(bench: Bench, run: Run) -> int:
    """How many runs there are that may be counted together with this one."""
    intent = run.intent(bench.results.run_folder(run.run_id))
    where = (intent.host.kind, intent.executor, scope_of(intent))
    identity = (intent.cell, intent.environment_hash, intent.workload_hash, *where)
    rows = Index(bench.results).rows()
    tainted = tainted_runs(bench.results, rows)
    return sum(
        row.outcome in COUNTED and row.drill is None and row.run_id not in tainted
        for row in rows
        if (row.cell, row.environment_hash, row.workload_hash, row.host_kind, row.executor, row.scope) == identity
    )
