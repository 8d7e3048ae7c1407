"""Make a planned run ready and run it: the one way of campaigns, searches, comparisons, trainings and injected faults.

The environment and the data are made while nobody is kept from a GPU; then the GPUs are locked, the cell is run, and
its record is entered in the index.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.base.errors import UserError
from harness.base.files.failpoints import reached
from harness.base.interrupts import shielded
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.dispatch import Dispatcher
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun
from harness.campaign.other_hosts.follow import CONTINUES, Follower
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.matrix.workloads import Workload
from harness.run.asked import Run
from harness.run.watch.watch import Observer


class InterruptedRunError(UserError):
    """A run was interrupted, and not by the user: the Docker engine is gone, or does not start it."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"{record.detail}; {CONTINUES}")
        self.record = record


@dataclass
class EngineLosses:
    """The runs in a row that were lost with their engine; after `most` of them a campaign ends."""

    most: int = 0
    in_a_row: int = 0

    def saw(self, records: Sequence[Record], say: Callable[[str], object]) -> None:
        """Take note of runs that one engine made at a time; say that the campaign goes on after lost ones.

        Raises:
            InterruptedRunError: when one was interrupted in another way, or too many in a row were lost.
        """
        interrupted = [record for record in records if record.outcome == "interrupted"]
        if not interrupted:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        others = [record for record in interrupted if record.interrupted_by != "engine"]
        if others or self.in_a_row > self.most:
            raise InterruptedRunError(next(iter(others or interrupted)))
        say(f"{interrupted[0].detail}; this does not count, and the campaign goes on")


@dataclass(frozen=True)
class Runner:
    """Runs one workload on a bench. `total` is the number of runs of the campaign, 0 where that is left open.

    `losses` says after how many runs in a row that were lost with the engine it goes on no more: none by default.
    """

    bench: Bench
    workload: Workload
    display: Display
    campaign: str | None = None
    total: int = 0
    losses: EngineLosses = field(default_factory=EngineLosses)

    def run(
        self,
        candidates: Sequence[PendingRun],
        seconds_left: float | None = None,
        change: Callable[[Run], Run] = lambda run: run,
        observe: Observer = lambda _: None,
    ) -> tuple[PendingRun, Record]:
        """Run the first of these whose GPUs are free, waiting for one; returns which it was, and its record.

        `seconds_left` is shown as the time that the campaign still takes. `change` has the last word on what is run.
        `observe` gets the progress lines; a KeyboardInterrupt of its own ends the run.

        Raises:
            StackUnavailableError: when what the chosen run's cell runs in cannot be made.
            InterruptedRunError: when the run was interrupted, and not by the user; not of the first losses of a
                campaign, which get another attempt.
            UserError: when the engine does not come back, the data cannot be trained on, or the results folder cannot
                be written.
            KeyboardInterrupt: after the run was recorded.
        """
        if self.bench.dispatcher:
            self.display.time_left(seconds_left)
            return self.run_elsewhere(candidates[:1], self.bench.dispatcher)[0]
        self.await_engine()
        runs = [(pending.planned, pending.run_id) for pending in candidates]
        while True:
            with self.bench.gpus_for(runs, self.display.step) as chosen:
                pending = candidates[chosen]
                if self.bench.is_ready(pending.cell, self.workload):
                    self.display.time_left(seconds_left)
                    self.display.started(pending.planned, pending.position, self.total)
                    run = self.bench.run(pending.planned, pending.run_id, self.workload, self.campaign)
                    record = self._record(change(run), observe)
                    self.losses.saw([record], self.display.problem)
                    return pending, record
            # Nobody is kept from a GPU while an environment is made.
            self.bench.make_ready(pending.cell, self.workload, self.display)

    def await_engine(self) -> None:
        """Return once the engine answers; it is rid then of what it left of runs that were lost with it.

        Raises:
            NoEngineError: when it does not answer for two minutes.
        """
        self.bench.await_engine(self.display.problem)
        if self.losses.in_a_row:
            self.bench.remove_lost_containers()

    def run_elsewhere(self, pending: Sequence[PendingRun], dispatcher: Dispatcher) -> list[tuple[PendingRun, Record]]:
        """Make runs at once on other hosts; returns each with its record, as it comes.

        Raises:
            StackUnavailableError: when what their cells run in cannot be made.
            UserError: when jobs are refused, or end before their runs begin.
            KeyboardInterrupt: after those that wait were cancelled; those that run go on, unless a person wants them
                cancelled, too.
        """
        for one in pending:
            if not self.bench.is_ready(one.cell, self.workload):
                self.bench.make_ready(one.cell, self.workload, self.display)
        follower = Follower(self.bench, dispatcher, self.display, self.campaign, self.total)
        follower.follow(pending, self.workload)
        try:
            return list(follower.records())
        except KeyboardInterrupt as signalled:
            follower.interrupted(str(signalled))
            raise

    def _record(self, run: Run, observe: Observer) -> Record:
        def observe_and_show(line: Progress) -> None:
            reached("running")
            self.display.progress(line)
            observe(line)

        results = self.bench.results
        with shielded():
            try:
                return self.bench.run_cell(run, observe_and_show, self.display.still, self.display.problem)
            finally:
                if record := results.record(run.run_id):
                    try:
                        Index(results).add(record)
                    except UserError as error:
                        self.display.problem(str(error))
                    self.display.finished(record)
