"""Concludes how a campaign with a goal ended, in a sentence. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from harness.base.durations import span
from harness.base.wording import some_of
from harness.evidence.verdicts.missing import Shortfall
from harness.evidence.verdicts.recommend import NamedCell
from harness.evidence.verdicts.scope import parts_of
from harness.evidence.verdicts.words import hours_in_words, in_words, shows_mtbf
from harness.search.goal import Goal
from harness.search.schedule import (
    Candidate,
    CandidateStatus,
    EndReason,
    Tally,
    hours_missing,
    reaches_both,
    starts_missing,
    status_of,
    straight_passes,
)

# How the user sets a budget, in words.
BUDGET = "`--budget`, with make `BUDGET=`"
# Longest list of cells in a sentence; a longer one is cut and ends with a count.
_LISTED = 3


@dataclass(frozen=True)
class Conclusion:
    """The conclusion of a campaign.

    Attributes:
        reached: whether the goal is reached.
        continues: whether the same command continues from these records.
        standings: the standing of each cell, named with its scope if the cell has several.
        named: the cell that the sentence names as the one to use, or as the nearest to the goal.
        least_budget: the seconds that the next run needs, if the budget was too small for any run.
    """

    why: EndReason
    reached: bool
    sentence: str
    continues: bool
    standings: Mapping[str, str]
    named: NamedCell | None = None
    least_budget: float | None = None


def conclude(
    goal: Goal, why: EndReason, tallies: Mapping[Candidate, Tally], seconds: Mapping[str, float]
) -> Conclusion:
    """Conclude a campaign. `tallies` holds every candidate."""
    statuses = {one: status_of(tally, goal) for one, tally in tallies.items()}
    good = [one for one, now in statuses.items() if now == "known-good"]
    # One that lacks only a boot may have more runs than one that is known-good, and so may one that was dropped.
    of_use = good or [one for one, now in statuses.items() if now == "open" and tallies[one].runs]
    best = max(of_use or tallies, key=lambda one: _nearness(tallies[one], goal))
    scopes = {one.cell: {other.scope for other in tallies if other.cell == one.cell} for one in tallies}
    names = {one: one.cell if len(scopes[one.cell]) == 1 else f"{one.cell} ({one.scope})" for one in tallies}
    names_best = bool(good) or (statuses[best] == "open" and tallies[best].runs > 0)
    if goal.every:
        sentence = _all_of_them(goal, why, tallies, statuses, names)
    elif good:
        sentence = f"{_shown(goal, names[best], tallies[best])}{_among(goal)}."
    else:
        sentence = f"{_NOT_FOUND[why]}: {_nearest(goal, names, tallies, statuses, seconds, best)}"
    least = _least_budget(goal, [one.cell for one, now in statuses.items() if now == "open"], seconds)
    least = least if why == "out-of-time" else None
    if least:
        began = any(tally.runs for tally in tallies.values())
        sentence = f"{sentence} {nothing_fits(least)}" if began else nothing_fits(least, "first")
    return Conclusion(
        why=why,
        reached=why == "reached",
        sentence=sentence,
        continues=why in ("out-of-time", "another-boot"),
        standings={names[one]: now for one, now in statuses.items()},
        named=None if goal.every or not names_best else NamedCell(best.cell, parts_of(best.scope).strategy),
        least_budget=least,
    )


def nothing_fits(least_budget: float, which: Literal["first", "next"] = "next") -> str:
    """Return the sentence about a budget that is too small for any run; `which` run it would be."""
    return f"No run fits into the budget: the {which} one needs {budget_in_words(least_budget)} ({BUDGET})."


def budget_in_words(seconds: float) -> str:
    """Return the smallest budget for a run of so many seconds, with the time to read the records, as typed: `15m`."""
    return f"{ceil(seconds / 60) + 1}m"


def _least_budget(goal: Goal, open_cells: Sequence[str], seconds: Mapping[str, float]) -> float | None:
    """Return the seconds of the shortest run of these cells, if they exceed the whole budget; otherwise None."""
    shortest = min((seconds[cell] for cell in open_cells if cell in seconds), default=None)
    return shortest if shortest and goal.budget is not None and shortest >= goal.budget else None


_NOT_FOUND: Mapping[EndReason, str] = {
    "out-of-time": "The time is over and no cell is shown to be known-good yet",
    "another-boot": "No cell is known-good before it ran on another boot too",
    "exhausted": "No cell was found to be known-good",
}


def _shown(goal: Goal, name: str, tally: Tally) -> str:
    # Round down, so that the sentence claims no more than was shown.
    totals = tally.shown
    low = floor(totals.start_rate(goal.of_each) * 1000) / 1000
    shown = in_words(totals) if totals.hours else f"{tally.passes} of {tally.runs} runs passed"
    mtbf = totals.mtbf(goal.of_each)
    lasts = f" and its mean time between failures above {hours_in_words(mtbf)}" if shows_mtbf(mtbf) else ""
    return (
        f"{name} is known-good: {shown}, so that the share of its starts that succeed is above "
        f"{max(goal.rate, low):.3g}{lasts} with {goal.of_each:.4g} confidence"
    )


def _nearness(tally: Tally, goal: Goal) -> tuple[bool, float, float]:
    """Return the key that sorts candidates by how near they are to the goal."""
    totals = tally.shown
    mtbf = min(totals.mtbf(goal.of_each), goal.mtbf_hours) if goal.mtbf_hours else 0.0
    return reaches_both(totals, goal), totals.start_rate(goal.of_each), mtbf


def _among(goal: Goal) -> str:
    return f" ({goal.confidence:.4g} for the best of {goal.among} cells)" if goal.among > 1 else ""


def _nearest(
    goal: Goal,
    names: Mapping[Candidate, str],
    tallies: Mapping[Candidate, Tally],
    statuses: Mapping[Candidate, CandidateStatus],
    seconds: Mapping[str, float],
    best: Candidate,
) -> str:
    said = []
    open_ = [one for one, now in statuses.items() if now == "open"]
    unverified = [one for one in open_ if tallies[one].passes and not tallies[one].shown.starts]
    if statuses[best] == "open" and tallies[best].runs and best not in unverified:
        left = straight_passes(tallies[best], goal)
        takes = f", about {span(left * seconds[best.cell])}" if best.cell in seconds else ""
        totals = tallies[best].shown
        missing = Shortfall(max(0, starts_missing(totals, goal)), max(0.0, hours_missing(totals, goal)), 0)
        # This many runs give what is missing: one start each, and hours according to their length.
        of_them = f" run{'s' * (left > 1)} of that length" if missing.hours else ""
        bring = f" ({missing.in_words})" if missing.hours else ""
        said.append(f"nearest is {names[best]} {_counted(tallies[best])}, {left} more{of_them} would do{bring}{takes}")
    if unverified:
        ones = [f"{names[one]} {_counted(tallies[one])}" for one in unverified]
        said.append(f"not verified, so nothing is shown (`matrix status CELL` says why): {some_of(ones, _LISTED)}")
    booted = [f"{names[one]} ({in_words(tallies[one].shown)})" for one in statuses if statuses[one] == "another-boot"]
    if booted:
        said.append(f"only another boot is missing for {some_of(booted, _LISTED)}")
    for now, word in (("hopeless", "dropped"), ("undecided", "too near the line")):
        ones = [f"{names[one]} {_counted(tallies[one])}" for one in statuses if statuses[one] == now]
        said += [f"{word}: {some_of(ones, _LISTED)}"] if ones else []
    untried = [names[one] for one in open_ if not tallies[one].runs]
    said += [f"never run: {some_of(untried, _LISTED)}"] if untried else []
    return "; ".join(said) + "."


def _all_of_them(
    goal: Goal,
    why: EndReason,
    tallies: Mapping[Candidate, Tally],
    statuses: Mapping[Candidate, CandidateStatus],
    names: Mapping[Candidate, str],
) -> str:
    settled = sum(now in ("known-good", "ruled-out") for now in statuses.values())
    over = "The time is over: " if why == "out-of-time" else ""
    sentence = f"{over}{settled} of {len(statuses)} cells are settled, each with {goal.confidence:.4g} confidence"
    words = (
        ("known-good", f"above {goal.rate:.3g}"),
        ("another-boot", "to be run on another boot too"),
        ("ruled-out", f"below {goal.rate:.3g}"),
        ("undecided", "too near that line to tell"),
        ("open", "still open"),
    )
    for now, word in words:
        ones = [f"{names[one]} {_counted(tallies[one])}" for one in statuses if statuses[one] == now]
        sentence += f"; {word}: {some_of(ones, _LISTED)}" if ones else ""
    return sentence + "."


def _counted(tally: Tally) -> str:
    return f"({tally.passes} of {tally.runs} passed)"
