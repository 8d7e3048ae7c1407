"""The verdict that a campaign with a goal can reach in its budget, judged by earlier runs here or by assumptions."""

from statistics import median

from harness.campaign.planning.forecast import SHARE_TRAINING
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.planning.tallies import Tallies
from harness.campaign.sequence.pursue import with_candidates_counted
from harness.search.reach import first_in_words, reach_in_words


def reach_of(prepared: PreparedCampaign) -> str | None:
    """Return the reachable verdict in words; None for a campaign without a goal."""
    plan = prepared.plan
    if plan.goal is None:
        return None
    tallies = Tallies(plan, prepared.bench, prepared.matrix)
    known, seconds = tallies.read()
    hours = [tally.hours_of_a_run for tally in known.values() if tally.hours_of_a_run]
    goal = with_candidates_counted(plan.goal, plan, tallies)
    thresholds = prepared.matrix.verdicts
    lanes = len({run.gpus for run in plan.runs if len(run.gpus) == 1}) if plan.side_by_side else 1
    if seconds and hours:
        return reach_in_words(goal, thresholds, median(seconds.values()), median(hours), lanes=lanes)
    minutes = _assumed_minutes(prepared)
    unknown = "" if seconds else first_in_words(goal, plan.workload.time_limit)
    if minutes is None:
        return reach_in_words(goal, thresholds, None, None) + unknown
    trained = SHARE_TRAINING * minutes / 60
    return reach_in_words(goal, thresholds, minutes * 60, trained, lanes=lanes, assumed=True) + unknown


def _assumed_minutes(prepared: PreparedCampaign) -> float | None:
    """Return the minutes that the matrix file gives a run of the plan's workload on a GPU; None if it gives none."""
    plan = prepared.plan
    if not any(run.gpus and run.cell.stack.accelerator == "rocm" for run in plan.runs):
        return None
    stages = prepared.matrix.stages.values()
    return next((stage.minutes for stage in stages if stage.workload == plan.workload.name), None)
