"""Which verdict a campaign with a goal can reach in its budget, by the runs that were made here before."""

from statistics import median

from harness.campaign.prepare import PreparedCampaign
from harness.campaign.pursue import with_candidates_counted
from harness.campaign.tallies import Tallies
from harness.search.reach import reach_in_words


def reach_of(prepared: PreparedCampaign) -> str | None:
    """Return it in words; None of a campaign without a goal."""
    plan = prepared.plan
    if plan.goal is None:
        return None
    tallies = Tallies(plan, prepared.bench, prepared.matrix)
    known, seconds = tallies.read()
    hours = [tally.hours_of_a_run for tally in known.values() if tally.hours_of_a_run]
    goal = with_candidates_counted(plan.goal, plan, tallies)
    measured = (median(seconds.values()), median(hours)) if seconds and hours else (None, None)
    return reach_in_words(goal, prepared.matrix.verdicts, *measured)
