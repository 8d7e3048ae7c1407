"""Runs cells, each chosen by all that is known, until a goal is reached. The caller makes the runs.

Everything else is pure.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.search.goal import Goal
from harness.search.schedule import Candidate, End, EndReason, Tally, next_run

# After so many runs of a cell in a row that show nothing of it, the cell is left out.
UNCOUNTED = 3


class CandidateRunner(Protocol):
    """Runs candidates, and reads their tallies from the records."""

    def candidates(self) -> list[Candidate]:
        """Return the candidates that can be run now."""

    def all_candidates(self) -> list[Candidate]:
        """Return the candidates of the whole plan, including those that were left out."""

    def known(self) -> tuple[Mapping[Candidate, Tally], Mapping[str, float]]:
        """Return the tallies of the candidates that were run, and the seconds that a run of each cell takes."""

    def run(self, candidate: Candidate, seconds_left: float | None, most: int, spare: float | None) -> bool:
        """Run a candidate at most `most` times; return False if it was only made ready, or was left out.

        It waits for its GPUs for `spare` seconds at most, and is not run if they are in use for longer; None: without
        end.
        """

    def leave_out(self, candidate: Candidate, why: str) -> None:
        """Run a candidate no more."""


@dataclass(frozen=True)
class Pursuit:
    """How a pursuit ended.

    Attributes:
        why: why the runs ended.
        tallies: the tallies of all candidates at that time.
        seconds: the seconds that a run of each cell takes.
        left_out: some candidates were left out, and may be available when the search is continued.
    """

    why: EndReason
    tallies: dict[Candidate, Tally]
    seconds: Mapping[str, float]
    left_out: bool


def pursue(goal: Goal, seed: int, runner: CandidateRunner, time_left: Callable[[], float | None]) -> Pursuit:
    """Run candidates until the goal is reached or out of reach, or the time is over.

    `time_left` returns seconds, or None without a budget. `seed` decides between equally promising candidates.
    """
    uncounted: Counter[Candidate] = Counter()
    last: tuple[Candidate, int] | None = None
    while True:
        known, seconds = runner.known()
        if last is not None:
            candidate, counted = last
            uncounted[candidate] = (
                0 if known.get(candidate, Tally()).shown.starts > counted else uncounted[candidate] + 1
            )
            if uncounted[candidate] == UNCOUNTED:
                why = (
                    f"{UNCOUNTED} runs in a row show nothing of it: they were not begun on an unhealthy GPU (`matrix "
                    f"doctor`), or not verified (`matrix status {candidate.cell}` says why)"
                )
                runner.leave_out(candidate, why)
            last = None
        candidates = runner.candidates()
        decision = next_run(candidates, known, goal, seed, seconds, time_left())
        if isinstance(decision, End):
            tallies = {one: known.get(one, Tally()) for one in runner.all_candidates()}
            left_out = len(candidates) < len(tallies)
            reason = "exhausted" if left_out and goal.every and decision.why == "reached" else decision.why
            return Pursuit(reason, tallies, seconds, left_out)
        chosen = decision.candidate
        if runner.run(chosen, decision.seconds_left, decision.runs_of_it, decision.spare):
            last = chosen, known.get(chosen, Tally()).shown.starts
