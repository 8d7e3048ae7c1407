"""Makes a planned run ready and runs it, for campaigns, searches, comparisons, trainings and injected faults alike.

The environment and the data are made first, while no GPU is locked. Then the GPUs are locked, the cell is run, and its
record is added to the index.
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
from harness.run.requested_run import Run
from harness.run.watch.watch import Observer


class InterruptedRunError(UserError):
    """A run was interrupted, but not by the user: the Docker engine is gone, or does not start the container."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"{record.detail}; {CONTINUES}")
        self.record = record


# Most runs in a row that may be lost with the Docker engine, which may be restarted or in trouble for a while.
MOST_LOST_IN_A_ROW = 3


@dataclass
class EngineLosses:
    """Counts the runs in a row that were lost with the Docker engine; more than `most` of them end the command."""

    most: int = 0
    in_a_row: int = 0

    def note_records(self, records: Sequence[Record], say: Callable[[str], object]) -> None:
        """Count runs that one engine made at the same time; after lost ones, say that it continues.

        Raises:
            InterruptedRunError: when a run was interrupted for another reason, or too many in a row were lost.
        """
        interrupted = [record for record in records if record.outcome == "interrupted"]
        if not interrupted:
            self.in_a_row = 0
            return
        self.in_a_row += 1
        others = [record for record in interrupted if record.interrupted_by != "engine"]
        if others or self.in_a_row > self.most:
            raise InterruptedRunError(next(iter(others or interrupted)))
        say(f"{interrupted[0].detail}; this does not count, and the command continues")


@dataclass(frozen=True)
class Runner:
    """Runs one workload on a bench.

    Attributes:
        total: the number of runs of the campaign; 0 if it is left open.
        losses: counts runs that were lost with the engine; by default the first one ends the campaign.
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
        spare: float | None = None,
    ) -> tuple[PendingRun, Record]:
        """Run the first candidate whose GPUs are free, waiting for one; return that candidate and its record.

        - `seconds_left`: shown as the time that the campaign still takes.
        - `change`: makes the last changes to the run.
        - `observe`: gets the progress lines; a KeyboardInterrupt that it raises ends the run.
        - `spare`: the seconds for which it may wait for GPUs; None: without end.

        Raises:
            StillInUseError: when no candidate has its GPUs after that wait.
            StackUnavailableError: when the environment of the chosen run's cell cannot be made.
            InterruptedRunError: when the run was interrupted, but not by the user. The first losses of a campaign do
                not raise it, because they get another attempt.
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
            with self.bench.gpus_for(runs, self.display.step, spare) as chosen:
                pending = candidates[chosen]
                if self.bench.is_ready(pending.cell, self.workload):
                    self.display.time_left(seconds_left)
                    self.display.started(pending.planned, pending.position, self.total)
                    run = self.bench.requested_run(pending.planned, pending.run_id, self.workload, self.campaign)
                    record = self._record(change(run), observe)
                    self.losses.note_records([record], self.display.problem)
                    return pending, record
            # The GPUs are released while the environment is made.
            self.bench.make_ready(pending.cell, self.workload, self.display)

    def await_engine(self) -> None:
        """Wait until the engine answers; then remove the containers of runs that were lost with it.

        Raises:
            NoEngineError: when it does not answer for two minutes.
        """
        self.bench.await_engine(self.display.problem)
        if self.losses.in_a_row:
            self.bench.remove_lost_containers()

    def run_elsewhere(self, pending: Sequence[PendingRun], dispatcher: Dispatcher) -> list[tuple[PendingRun, Record]]:
        """Make runs at once on other hosts; return each with its record, in the order in which they end.

        Raises:
            StackUnavailableError: when the environment of a cell cannot be made.
            UserError: when jobs are refused, or end before their runs begin.
            KeyboardInterrupt: after the waiting jobs were cancelled; runs under way go on unless the user wants to
                cancel them, too.
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
                return self.bench.run_cell(run, observe_and_show, self.display.stalled, self.display.problem)
            finally:
                if record := results.record(run.run_id):
                    try:
                        Index(results).add(record)
                    except UserError as error:
                        self.display.problem(str(error))
                    self.display.finished(record)
