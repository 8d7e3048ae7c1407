"""Runs a plan whose number of runs is fixed: one run after the other, always the first whose GPUs are free.

If the host allows it, runs of the same cell and repeat run side by side, each on its own GPU.
"""

from collections.abc import Sequence
from statistics import median

from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.plan import PendingRun, Plan, PlannedRun, rounds_of
from harness.campaign.campaign import Campaign
from harness.campaign.gpus.unhealthy import HealthyGpus, recheck_unhealthy
from harness.campaign.gpus.unproven import HostCause, UnprovenGpus
from harness.campaign.helpers.together import run_together, that_may_share
from harness.campaign.runner import Runner
from harness.campaign.sequence.refused import refused_of
from harness.evidence.files.run_files import Record


def run_plan(plan: Plan, campaign: Campaign, runner: Runner, cause: HostCause = lambda: None) -> None:
    """Run what is left of a plan, except runs that need an unhealthy GPU or a stack that cannot be made.

    A cell whose app refuses the command, and never accepted it, gets no further run: it would refuse each one.

    If a stack's probe fails on a GPU where no probe has passed since the boot, or since the last run, the stack is put
    off until another stack's probe passes there. In the first case, `cause` returns what is wrong with the host.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, the engine is gone, or
            something in the host keeps every stack from a GPU.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    bench, display = runner.bench, runner.display
    left = campaign.pending(plan)
    recheck_unhealthy(left, plan.workload, bench, display)
    healthy = HealthyGpus(bench, display)
    seconds = [] if plan.seconds_expected is None else [plan.seconds_expected / _rounds(plan, plan.runs)]
    unproven = UnprovenGpus(bench, display, cause)
    while left := healthy.runnable(left):
        ready = unproven.runnable(left)
        if not ready:
            unproven.report(left)
            break
        seconds_left = median(seconds) * _rounds(plan, [one.planned for one in left]) if seconds else None
        try:
            made = _run_next(plan, ready, runner, seconds_left)
        except StackUnavailableError as error:
            display.problem(error.left_out)
            left = [one for one in left if one.cell.stack != error.stack]
            continue
        for done, record in made:
            left.remove(done)
            if unproven.note_record(done, record) or record.outcome == "interrupted":
                left += campaign.next_attempts(done)
            else:
                seconds.append(record.finished - record.intent.started)
        for refused in refused_of(made, bench.results):
            cell = refused.intent.cell
            if any(one.cell.id == cell for one in left):
                display.problem(f"{cell} is left out: the app refuses this command: {refused.detail}")
                left = [one for one in left if one.cell.id != cell]


def _run_next(
    plan: Plan, ready: Sequence[PendingRun], runner: Runner, seconds_left: float | None
) -> list[tuple[PendingRun, Record]]:
    """Make the next run, together with those of the same cell and repeat if they may run side by side."""
    bench, first = runner.bench, ready[0].planned
    same = [one for one in ready if (one.cell, one.planned.repeat) == (first.cell, first.repeat)]
    if plan.side_by_side and len(same) > 1:
        if not bench.is_ready(first.cell, plan.workload):
            bench.make_ready(first.cell, plan.workload, runner.display)
        if together := that_may_share(same, bench):
            return run_together(runner, together, seconds_left)
    return [runner.run(ready, seconds_left)]


def _rounds(plan: Plan, runs: Sequence[PlannedRun]) -> int:
    return rounds_of(runs, side_by_side=plan.side_by_side)
