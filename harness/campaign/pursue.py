"""Carries out a campaign whose runs are decided one after the other, by all that is known so far."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count

from harness.base.errors import UserError
from harness.campaign.bench import Bench, Display
from harness.campaign.campaign import Campaign, Turn, make_ready, on_healthy_gpus, recheck_sick
from harness.campaign.plan import Plan, PlannedRun
from harness.campaign.tallies import Tallies
from harness.evidence.index import Index, Row
from harness.search.goal import Goal
from harness.search.schedule import Candidate, End, Ended, Tally, decide

# So many runs of a cell in a row that did not count, being the host's fault or tainted by it, are enough.
UNCOUNTED = 3


@dataclass(frozen=True)
class Found:
    """Why a search ended, and what is known of its candidates then; `seconds` is what a run of each cell takes."""

    why: Ended
    tallies: dict[Candidate, Tally]
    seconds: dict[str, float]


def search(plan: Plan, goal: Goal, bench: Bench, campaign: Campaign, tallies: Tallies, display: Display) -> Found:
    """Make runs until the goal is reached, cannot be, or the time is over.

    Raises:
        UserError: when the data cannot be trained on, or the results folder cannot be written.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    before = runs_made(bench, campaign)
    # One that was interrupted may have been found long after its end.
    clock = _Clock(goal, sum(row.finished - row.started for row in before))
    left, made = list(plan.runs), len(before)
    recheck_sick(_turns(left, campaign), plan.workload, bench, display)
    sick: dict[int, str] = {}
    uncounted: Counter[Candidate] = Counter()
    last: Candidate | None = None
    counted = 0
    while True:
        left = [turn.planned for turn in on_healthy_gpus(_turns(left, campaign), sick, bench, display)]
        known, seconds = tallies.read()
        if last is not None:
            uncounted[last] = 0 if known.get(last, Tally()).runs > counted else uncounted[last] + 1
            if uncounted[last] == UNCOUNTED:
                told = f"{UNCOUNTED} runs in a row did not count, being the host's fault (`matrix doctor`)"
                display.problem(f"{last.cell} is left out: {told}")
                left = [planned for planned in left if tallies.candidate(planned) != last]
            last = None
        candidates = list(dict.fromkeys(map(tallies.candidate, left)))
        decision = decide(candidates, known, goal, campaign.seed, seconds, clock.left)
        if isinstance(decision, End):
            of_all = {one: known.get(one, Tally()) for one in map(tallies.candidate, plan.runs)}
            left_out = len(candidates) < len(of_all)
            why = "exhausted" if left_out and goal.every and decision.why == "reached" else decision.why
            # What was left out may be there when the same command goes on.
            if not (left_out and why == "exhausted"):
                campaign.end(why)
            return Found(why, of_all, seconds)
        chosen = decision.candidate
        of_chosen = [planned for planned in left if tallies.candidate(planned) == chosen]
        cell = of_chosen[0].cell
        if not bench.has_environment(cell):
            if not make_ready(cell, plan.workload, bench, display):
                left = [planned for planned in left if planned.cell.stack != cell.stack]
            # What is known of a cell for certain may be more now.
            continue
        turns = _turns(of_chosen, campaign)
        with bench.gpus_for([(turn.planned, turn.run_id) for turn in turns], display.step) as number:
            turn = turns[number]
            display.time_left(decision.seconds_left)
            made += 1
            display.started(turn.planned, made, 0)
            record = bench.make(bench.run(turn.planned, turn.run_id, plan.workload, campaign.id), display)
        if record.outcome == "interrupted":
            raise UserError(f"{record.detail}; the same command goes on where it stopped")
        last, counted = chosen, known.get(chosen, Tally()).runs


class _Clock:
    """What is left of the budget."""

    def __init__(self, goal: Goal, spent: float) -> None:
        self._until = None if goal.budget is None else time.monotonic() + goal.budget - spent

    @property
    def left(self) -> float | None:
        """In seconds; None without a budget."""
        return None if self._until is None else self._until - time.monotonic()


def runs_made(bench: Bench, campaign: Campaign) -> list[Row]:
    """The runs of a campaign that are done. Of several attempts at one all but the last were interrupted."""
    return [row for row in Index(bench.results).rows() if row.campaign == campaign.id and row.outcome != "interrupted"]


def _turns(left: list[PlannedRun], campaign: Campaign) -> list[Turn]:
    """The next run of each placement, those first that had the fewest runs in this campaign."""
    turns = []
    for planned in left:
        further = (replace(planned, repeat=repeat) for repeat in count(planned.repeat))
        turns.append(next(Turn(0, one, run_id) for one in further if (run_id := campaign.next_attempt(one))))
    return sorted(turns, key=lambda turn: turn.planned.repeat)
