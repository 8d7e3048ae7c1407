"""Runs a plan with a fixed number of runs on the hosts of a scheduler: as many at once as the scheduler takes."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from harness.base.errors import UserError
from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.dispatch import Dispatcher
from harness.campaign.bench.plan import PendingRun, Plan
from harness.campaign.campaign import Campaign
from harness.campaign.other_hosts.follow import CONTINUES, Follower
from harness.campaign.runner import Runner
from harness.campaign.sequence.put_off import PutOff
from harness.evidence.files.run_files import Record
from harness.evidence.verdicts.counting import NOT_BEGUN

# Most attempts at a run in one command: a run cancelled this often is cancelled by somebody who means it.
MOST_ATTEMPTS = 20


def run_spread(plan: Plan, campaign: Campaign, runner: Runner, dispatcher: Dispatcher) -> None:
    """Run what is left of a plan, except stacks that cannot be made; interrupted runs are repeated.

    Raises:
        UserError: when the data cannot be trained on, the results folder cannot be written, or jobs are refused.
        KeyboardInterrupt: after the waiting jobs were cancelled; runs under way go on unless the user wants otherwise.
    """
    pending = campaign.pending(plan, following=True)
    before = len(plan.runs) - len(pending)
    follower = Follower(runner.bench, dispatcher, runner.display, runner.campaign, runner.total, before)
    spread = _Spread(plan, campaign, runner, follower, pending)
    try:
        while spread.fill():
            for done, record in follower.records():
                spread.note_record(done, record)
                spread.fill()
    except KeyboardInterrupt as signalled:
        follower.interrupted(str(signalled))
        raise


@dataclass
class _Spread:
    """A plan that is being run.

    Attributes:
        left: the runs that are not followed yet.
        seconds: the durations of the runs that ended.
        attempts: how many attempts did not count, by the position of the run.
    """

    plan: Plan
    campaign: Campaign
    runner: Runner
    follower: Follower
    left: list[PendingRun]
    seconds: list[float] = field(default_factory=list)
    put_off: PutOff[PendingRun] = field(default_factory=PutOff)
    attempts: Counter[int] = field(default_factory=Counter)

    def fill(self) -> bool:
        """Follow as many further runs as there is room for; return whether any run is followed.

        A stack that cannot be made is left out, or put off if it may be made later.
        """
        bench, display, workload = self.runner.bench, self.runner.display, self.plan.workload
        while (self.left or self._take_up()) and self.follower.room > 0:
            pending = self.left.pop(0)
            try:
                if not bench.is_ready(pending.cell, workload):
                    bench.make_ready(pending.cell, workload, display)
            except StackUnavailableError as error:
                display.problem(error.left_out)
                self.left = self.put_off.without([pending, *self.left], error)
            else:
                self.follower.follow([pending], workload)
        return self.follower.room < self.follower.dispatcher.at_once

    def _take_up(self) -> bool:
        """Give stacks that could not be made another turn, once no run is followed any more."""
        if self.follower.room == self.follower.dispatcher.at_once:
            self.left = self.put_off.take_deferred()
        return bool(self.left)

    def note_record(self, done: PendingRun, record: Record) -> None:
        """Note the record of a run; if it does not count, the run gets another attempt."""
        if record.outcome == "interrupted" or record.diagnosis == NOT_BEGUN:
            self.attempts[done.position] += 1
            if self.attempts[done.position] >= MOST_ATTEMPTS:
                raise UserError(f"{MOST_ATTEMPTS} attempts at {done.run_id} were interrupted; {CONTINUES}")
            self.left = [*self.campaign.next_attempts(done), *self.left]
            return
        self.seconds.append(record.finished - record.intent.started)
        ahead = len(self.left) + self.follower.dispatcher.at_once - self.follower.room
        nodes = max(1, self.follower.dispatcher.nodes_at_work)
        self.runner.display.time_left(median(self.seconds) * ahead / nodes)
