"""Runs a plan whose number of runs is fixed: one run after the other, always the first whose GPUs are free."""

from statistics import median

from harness.campaign.bench import StackUnavailableError
from harness.campaign.campaign import Campaign
from harness.campaign.plan import Plan
from harness.campaign.runner import Runner
from harness.campaign.unhealthy import HealthyGpus, recheck_unhealthy
from harness.campaign.unproven import HostCause, UnprovenGpus


def run_plan(plan: Plan, campaign: Campaign, runner: Runner, cause: HostCause = lambda: None) -> None:
    """Run what is still to be run of a plan, but for what needs an unhealthy GPU or a stack that cannot be made.

    A stack whose probe fails on a GPU where no stack's has passed since the boot is put off until another's passes;
    `cause` is then asked what is wrong with the host.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, the engine is gone, or
            something in the host keeps every stack from a GPU.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    bench, display = runner.bench, runner.display
    left = campaign.pending(plan)
    recheck_unhealthy(left, plan.workload, bench, display)
    healthy = HealthyGpus(bench, display)
    seconds = [] if plan.seconds_expected is None else [plan.seconds_expected / len(plan.runs)]
    unproven = UnprovenGpus(bench, display, cause)
    while left := healthy.runs(left):
        ready = unproven.runs(left)
        if not ready:
            unproven.report(left)
            break
        seconds_left = median(seconds) * len(left) if seconds else None
        try:
            done, record = runner.run(ready, seconds_left)
        except StackUnavailableError as error:
            display.problem(f"stack {error.stack.name} is left out: {error}")
            left = [one for one in left if one.cell.stack != error.stack]
        else:
            left.remove(done)
            if unproven.saw(done, record):
                left += campaign.again(done)
            else:
                seconds.append(record.finished - record.intent.started)
