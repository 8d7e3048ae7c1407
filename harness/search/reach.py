"""Computes which verdict a budget can reach, before the first run is made. Pure."""

from math import ceil

from harness.base.durations import span
from harness.base.wording import many
from harness.evidence.verdicts.missing import missing_to
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Threshold
from harness.matrix.cells import Verdicts
from harness.search.goal import Goal

TIERS: tuple[Threshold, ...] = ("known_good", "good", "candidate")


def seconds_to(
    threshold: Threshold, goal: Goal, thresholds: Verdicts, run_seconds: float, run_hours: float, lanes: int = 1
) -> float:
    """Return the seconds of runs that show a threshold for a cell that never fails; infinite if runs bring no hours.

    - `run_seconds`: the duration of a run.
    - `run_hours`: as in `runs_to`.
    - `lanes`: how many runs are made side by side.
    """
    runs = runs_to(threshold, goal, thresholds, run_hours)
    return float("inf") if runs is None else ceil(runs / lanes) * run_seconds


def runs_to(threshold: Threshold, goal: Goal, thresholds: Verdicts, run_hours: float) -> int | None:
    """Return how many runs without a failure show the starts and hours of a threshold; None if runs bring no hours.

    Each run is one start; `run_hours` is how many hours of it are training.
    """
    missing = missing_to(Totals(), threshold, thresholds, goal.of_each)
    if missing.hours and not run_hours:
        return None
    return max(missing.starts, ceil(missing.hours / run_hours) if missing.hours else 0)


def reach_in_words(
    goal: Goal,
    thresholds: Verdicts,
    run_seconds: float | None,
    run_hours: float | None,
    *,
    lanes: int = 1,
    assumed: bool = False,
) -> str:
    """Return what known-good takes at least, and which tier a budget can reach for a cell that never fails.

    `run_seconds`, `run_hours` and `lanes` are as in `seconds_to`; the first two are None if unknown. `assumed` says
    that they are assumed, not measured.
    """
    needed = missing_to(Totals(), "known_good", thresholds, goal.of_each)
    best = f" (held to {goal.of_each:.4g}, as the best of {goal.among})" if goal.among > 1 and not goal.every else ""
    boots = f", on {thresholds.known_good_boots} boots" if thresholds.known_good_boots > 1 else ""
    hours = f" and {ceil(needed.hours * 10) / 10:.1f} hours of training" if needed.hours else ""
    said = f"known-good takes {many(needed.starts, 'start')}{hours} without a failure{boots}{best}"
    if run_seconds is None or run_hours is None:
        least = needed.hours * 3600 / lanes
        short = f"; {span(goal.budget)} cannot reach it" if goal.budget is not None and goal.budget < least else ""
        return f"{said}{short}; the first runs show how long that takes"
    takes = {tier: seconds_to(tier, goal, thresholds, run_seconds, run_hours, lanes) for tier in TIERS}
    longest, runs = takes["known_good"], runs_to("known_good", goal, thresholds, run_hours)
    each = f"(assumed: {span(run_seconds)} each)" if assumed else "as long as those before"
    never = ": runs as short as those before never show it"
    said += f": {many(runs, 'run')} {each}, about {span(longest)}" if runs else never
    if goal.budget is None:
        return said
    if longest <= goal.budget:
        again = ", after a reboot in between" if thresholds.known_good_boots > 1 else ""
        return f"{said}; {span(goal.budget)} can reach it{again}"
    reached = next((tier for tier in TIERS if takes[tier] <= goal.budget), None)
    if reached is None:
        return f"{said}; {span(goal.budget)} can reach no verdict but `seen`"
    return f"{said}; {span(goal.budget)} can reach `{reached}` at best"


def first_in_words(goal: Goal, time_limit: float) -> str:
    """Return the effect of a first run of unknown length on a budget, in words; empty if its time limit fits."""
    if goal.budget is None or time_limit <= goal.budget:
        return ""
    return (
        f"; it is unknown how long the first run takes: it runs to its end, at most {span(time_limit)}, "
        f"also beyond {span(goal.budget)}"
    )
