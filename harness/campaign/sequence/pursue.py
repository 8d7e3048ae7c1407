"""Carries out a campaign with a goal: the runs that its search asks for, on a bench."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.dispatch import Dispatcher
from harness.campaign.bench.gpu_locks import StillInUseError
from harness.campaign.bench.plan import PendingRun, Plan, PlannedRun
from harness.campaign.campaign import Campaign
from harness.campaign.gpus.unhealthy import HealthyGpus, recheck_unhealthy
from harness.campaign.gpus.unproven import UnprovenGpus, host_cause
from harness.campaign.helpers.together import run_together, seconds_spent, that_may_share
from harness.campaign.planning.tallies import Tallies
from harness.campaign.runner import Runner
from harness.campaign.sequence.put_off import PutOff
from harness.campaign.sequence.refused import refused_of
from harness.evidence.files.run_files import Record
from harness.search.goal import Goal
from harness.search.pursue import Pursuit, pursue
from harness.search.schedule import Candidate, Tally
from harness.search.spread import candidates_at_once


def pursue_goal(plan: Plan, goal: Goal, campaign: Campaign, runner: Runner, tallies: Tallies) -> Pursuit:
    """Run cells of a plan until the goal is reached or out of reach, or the time is over.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, or the engine is gone.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    before = campaign.finished_runs()
    spent = seconds_spent(before)
    until = None if goal.budget is None else time.monotonic() + goal.budget - spent
    left = list(plan.runs)
    recheck_unhealthy(campaign.next_repeats(left), plan.workload, runner.bench, runner.display)
    runs = _PlanRunner(plan, campaign, runner, tallies, left, len(before), goal)
    time_left = partial(_time_left, until)
    found = pursue(goal, campaign.seed, runs, time_left)
    while found.why == "exhausted" and runs.take_up():
        found = pursue(goal, campaign.seed, runs, time_left)
    # Candidates that were left out may be available when the same command continues.
    if not (found.left_out and found.why == "exhausted"):
        campaign.end(found.why)
    return found


def _time_left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


@dataclass
class _PlanRunner:
    """Runs the candidates of a plan. `left` are the placements that may still be run; `made` counts the runs so far."""

    plan: Plan
    campaign: Campaign
    runner: Runner
    tallies: Tallies
    left: list[PlannedRun]
    made: int
    goal: Goal
    _healthy: HealthyGpus = field(init=False)
    _unproven: UnprovenGpus = field(init=False)
    _put_off: PutOff[PlannedRun] = field(default_factory=PutOff)

    def __post_init__(self) -> None:
        bench, display = self.runner.bench, self.runner.display
        self._healthy = HealthyGpus(bench, display)
        self._unproven = UnprovenGpus(bench, display, partial(host_cause, self.tallies.matrix, bench))

    def candidates(self) -> list[Candidate]:
        """Return the candidates that can run now: on healthy GPUs, not put off until some probe has passed."""
        healthy = self._healthy.runnable(self.campaign.next_repeats(self.left))
        self.left = [one.planned for one in healthy]
        ready = self._unproven.runnable(healthy)
        if healthy and not ready:
            self._unproven.report(healthy)
        return list(dict.fromkeys(self.tallies.candidate(one.planned) for one in ready))

    def take_up(self) -> bool:
        """Give stacks that could not be made for now another turn; return whether there are any."""
        taken = self._put_off.take_deferred()
        self.left += taken
        return bool(taken)

    def all_candidates(self) -> list[Candidate]:
        """Return the candidates of the whole plan."""
        return list(dict.fromkeys(map(self.tallies.candidate, self.plan.runs)))

    def known(self) -> tuple[dict[Candidate, Tally], dict[str, float]]:
        """Return the tallies of the candidates, and the seconds of a run of each cell."""
        return self.tallies.read()

    def run(self, candidate: Candidate, seconds_left: float | None, most: int, spare: float | None) -> bool:
        """Run a candidate on the first of its GPUs that is free, or on several side by side if the host allows it.

        Return whether a run was made: the first time, the candidate is only made ready. `spare`: the longest wait for a
        GPU that is in use.
        """
        bench, display = self.runner.bench, self.runner.display
        of_candidate = [planned for planned in self.left if self.tallies.candidate(planned) == candidate]
        cell = of_candidate[0].cell
        if not bench.is_ready(cell, self.plan.workload):
            try:
                bench.make_ready(cell, self.plan.workload, display)
            except StackUnavailableError as error:
                display.problem(error.left_out)
                self.left = self._put_off.without(self.left, error)
            # The environment may tell more about the cell, so let the search decide again.
            return False
        if bench.dispatcher:
            made = self._make_elsewhere(candidate, bench.dispatcher, seconds_left)
        else:
            pending = self._unproven.runnable(self.campaign.next_repeats(of_candidate))
            try:
                made = self._make(pending, seconds_left, most, spare)
            except StillInUseError:
                # There is less time left now, so let the search decide again.
                return False
        for done, record in made:
            self._unproven.note_record(done, record)
        if refused := refused_of(made, bench.results):
            self.leave_out(candidate, f"the app refuses this command: {refused[0].detail}")
        return True

    def _make(
        self, pending: Sequence[PendingRun], seconds_left: float | None, most: int, spare: float | None
    ) -> list[tuple[PendingRun, Record]]:
        together = that_may_share(pending, self.runner.bench)[:most] if self.plan.side_by_side else []
        if len(together) > 1:
            numbered = [replace(one, position=self.made + number) for number, one in enumerate(together, start=1)]
            self.made += len(numbered)
            return run_together(self.runner, numbered, seconds_left and seconds_left / len(numbered))
        numbered = [replace(one, position=self.made + 1) for one in pending]
        made = [self.runner.run(numbered, seconds_left, spare=spare)]
        self.made += 1
        return made

    def _make_elsewhere(
        self, first: Candidate, dispatcher: Dispatcher, seconds_left: float | None
    ) -> list[tuple[PendingRun, Record]]:
        """Make runs at once, one per node: of `first`, and of those that come next if all end as expected."""
        tallies, seconds = self.known()
        candidates = [one for one in self.candidates() if one == first or self._is_ready(one)]
        most = dispatcher.nodes_at_work
        chosen = candidates_at_once(candidates, tallies, self.goal, self.campaign.seed, seconds, most)
        repeats = {one: self._repeats(one) for one in chosen or [first]}
        pending = [next(repeats[one]) for one in chosen or [first]]
        numbered = [replace(one, position=self.made + number) for number, one in enumerate(pending, start=1)]
        self.made += len(numbered)
        self.runner.display.time_left(seconds_left)
        return self.runner.run_elsewhere(numbered, dispatcher)

    def _is_ready(self, candidate: Candidate) -> bool:
        cells = (one.cell for one in self.left if self.tallies.candidate(one) == candidate)
        return self.runner.bench.is_ready(next(cells), self.plan.workload)

    def _repeats(self, candidate: Candidate) -> Iterator[PendingRun]:
        """Yield the runs of a candidate that are still to be done, of all its placements in turn."""
        placed = [planned for planned in self.left if self.tallies.candidate(planned) == candidate]
        for together in zip(*(self.campaign.repeats_of(one, following=True) for one in placed), strict=True):
            yield from sorted(together, key=lambda one: one.planned.repeat)

    def leave_out(self, candidate: Candidate, why: str) -> None:
        """Report that a candidate is left out, and run it no more."""
        self.runner.display.problem(f"{candidate.cell} is left out: {why}")
        self.left = [planned for planned in self.left if self.tallies.candidate(planned) != candidate]


def with_candidates_counted(goal: Goal, plan: Plan, tallies: Tallies) -> Goal:
    """Return the goal with the number of candidates that the plan has, or that had runs here.

    The best of many candidates needs more confidence; a promotion counts candidates in the same way.
    """
    planned = {(one.cell, one.scope) for one in map(tallies.candidate, plan.runs)}
    return replace(goal, among=len(planned | tallies.tried()))
