"""Runs a plan whose number of runs is fixed: one run after the other, always the first whose GPUs are free."""

from statistics import median

from harness.campaign.bench import StackUnavailableError
from harness.campaign.campaign import Campaign
from harness.campaign.plan import Plan
from harness.campaign.runner import Runner
from harness.campaign.unhealthy import HealthyGpus, recheck_unhealthy


def run_plan(plan: Plan, campaign: Campaign, runner: Runner) -> None:
    """Run what is still to be run of a plan, but for what needs an unhealthy GPU or a stack that cannot be made.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, or the engine is gone.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    bench, display = runner.bench, runner.display
    left = campaign.pending(plan)
    recheck_unhealthy(left, plan.workload, bench, display)
    healthy = HealthyGpus(bench, display)
    seconds = [] if plan.seconds_expected is None else [plan.seconds_expected / len(plan.runs)]
    while left := healthy.runs(left):
        seconds_left = median(seconds) * len(left) if seconds else None
        try:
            done, record = runner.run(left, seconds_left)
        except StackUnavailableError as error:
            display.problem(f"stack {error.stack.name} is left out: {error}")
            left = [one for one in left if one.cell.stack != error.stack]
        else:
            seconds.append(record.finished - record.intent.started)
            left.remove(done)
