"""Follows runs on other hosts to their records: each is submitted once, and yielded once."""

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.base.durations import span
from harness.base.errors import UnhealthyHostError, UserError
from harness.base.interrupts import shielded, skippable
from harness.base.wording import many
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.dispatch import Closing, Dispatcher, JobSeen, RunRequest
from harness.campaign.bench.display import Display, Elsewhere
from harness.campaign.bench.plan import PendingRun
from harness.campaign.other_hosts.shown_runs import ShownRuns
from harness.campaign.other_hosts.waiting import HELP, SAID_SECONDS, Waiting
from harness.campaign.recovery import record_of_lost
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.index import Index
from harness.evidence.verdicts.counting import NOT_BEGUN
from harness.matrix.workloads import Workload

# Seconds between two questions to the scheduler, each for all jobs. Records are looked for more often.
LOOK_SECONDS = 5.0
RECORD_SECONDS = 0.5
# After so many jobs in a row that ended before the run began, no further job is submitted.
MOST_TRIES = 3
CONTINUES = "the same command continues where it stopped"
# Most jobs submitted between two looks, so that records are still seen while thousands of jobs are submitted.
SUBMITTED_BETWEEN = 20
# Pauses in seconds before a node that left no record is asked again; after the last one that is reported.
CLOSING_PAUSES = (10.0, 30.0, 120.0, 300.0)
DRAINED = "one of its processes cannot be killed, so its node was drained; its job said: {}"


@dataclass
class _Followed:
    """A run that has no record yet. Times are on the monotonic clock."""

    pending: PendingRun
    workload: Workload
    job: JobSeen | None = None
    submitted: bool = False
    begun: bool = False
    tries: int = 0
    over_since: float | None = None
    closings: int = 0
    asks_from: float = 0.0
    gone_since: float | None = None
    without_record: str = ""


@dataclass
class Follower:
    """Follows runs on the hosts of a scheduler; `campaign` and `total` are as in `Runner`.

    `done` is how many runs of the campaign are done; if None, all runs before the first followed one.
    """

    bench: Bench
    dispatcher: Dispatcher
    display: Display
    campaign: str | None = None
    total: int = 0
    done: int | None = None
    _followed: dict[str, _Followed] = field(default_factory=dict)
    _waiting: Waiting = field(default_factory=Waiting)
    _shown: ShownRuns = field(init=False)
    _asked: float | None = None
    _silent_since: float | None = None

    def __post_init__(self) -> None:
        self._shown = ShownRuns(self.bench.results, self.display, self.total)

    @property
    def room(self) -> int:
        """The number of further runs that may be followed."""
        return self.dispatcher.at_once - len(self._followed)

    def follow(self, pending: Sequence[PendingRun], workload: Workload) -> None:
        """Follow further runs; runs that already have a job or a folder are not submitted again."""
        if self.done is None:
            self.done = min((one.position for one in pending), default=1) - 1
        for one in pending:
            self._followed[one.run_id] = _Followed(one, workload)

    def records(self) -> Iterator[tuple[PendingRun, Record]]:
        """Yield each followed run with its record as soon as it has one; the caller may follow more runs meanwhile.

        Raises:
            UserError: when the scheduler refuses a job, jobs end before their runs begin, no node takes jobs or begins
                runs, or only runs are left whose records cannot be had.
            KeyboardInterrupt: when the user interrupts; the jobs go on.
        """
        while self._followed:
            if self._asked is None or time.monotonic() - self._asked >= LOOK_SECONDS:
                self._poll()
            self._submit()
            # Skip runs that wait: they have no record, and looking for thousands of records over a network is slow.
            begun = [one for one in self._followed.values() if one.job is None or one.job.phase != "waits"]
            done = [one for one in begun if self.bench.results.has_record(one.pending.run_id)]
            for one in done:
                record = self.bench.results.record(one.pending.run_id)
                del self._followed[one.pending.run_id]
                if record:
                    self._show_record(one, record)
                    yield one.pending, record
            if self._followed and all(one.without_record for one in self._followed.values()):
                raise UserError(next(one.without_record for one in self._followed.values()))
            if not done:
                time.sleep(RECORD_SECONDS)

    def interrupted(self, name: str) -> None:
        """After a signal, cancel the jobs that wait now, and report how many runs go on.

        A user who pressed Ctrl-C is asked whether to cancel the jobs that run, too.
        """
        seen = self.dispatcher.look() or {}
        for run_id, one in self._followed.items():
            one.job = seen.get(run_id, one.job)
        waiting, running = self.phases()
        self.dispatcher.cancel(waiting)
        if not running:
            return
        if name == signal.Signals.SIGINT.name:
            question = f"{many(len(waiting), 'waiting job')} cancelled, {len(running)} under way. Cancel those, too?"
            with skippable("Ctrl-C once more leaves the running jobs as they are"):
                if self.display.agrees(question):
                    self.dispatcher.cancel(running)
                    return
        self.display.notice(f"{many(len(running), 'run continues', 'runs continue')} and will be recorded; {CONTINUES}")

    def phases(self) -> tuple[list[str], list[str]]:
        """Return the ids of the runs that wait, and of those that run or may run."""
        waiting = [name for name, one in self._followed.items() if one.job and one.job.phase == "waits"]
        waits = frozenset(waiting)
        return waiting, [name for name, one in self._followed.items() if name not in waits and one.submitted]

    def _poll(self) -> None:
        """Ask the scheduler for the state of all jobs, and act on the answer."""
        if self._waiting.wants_nodes:
            # Ask for the nodes instead of the jobs, so that there is one question in LOOK_SECONDS.
            self._look_at_nodes()
            self._tell_waiting()
            return
        asked, seen = time.monotonic(), self.dispatcher.look()
        self._asked = time.monotonic()
        if seen is None:
            self._silent_since = self._silent_since or asked
            silent = time.monotonic() - self._silent_since
            # Forget how long nothing has run, because the state of the nodes is unknown meanwhile.
            self._waiting = Waiting()
            self.display.step(f"the scheduler has not answered for {silent:.0f} s; still waiting for records")
            return
        self._silent_since = None
        for one in self._followed.values():
            self._update(one, seen.get(one.pending.run_id))
        waiting, running = self.phases()
        self._waiting.saw(len(running), filter(None, (self._followed[name].job for name in waiting)))
        self._tell_waiting()
        for name in running:
            self._show(self._followed[name])

    def _show(self, one: _Followed) -> None:
        if one.job and one.job.node and one.begun:
            self._shown.show(one.pending, one.workload, one.job.node, self.done or 0)

    def _look_at_nodes(self) -> None:
        """Ask which nodes take no jobs; stop if that is all of them for a long time.

        Raises:
            UnhealthyHostError: when no node takes jobs; the waiting jobs were cancelled.
        """
        waiting = self._waiting
        waiting.saw_nodes(self.dispatcher.unavailable_nodes())
        self._asked = time.monotonic()
        if waiting.seconds >= SAID_SECONDS and len(waiting.away) >= max(1, self.dispatcher.nodes_at_work):
            self.dispatcher.cancel(self.phases()[0])
            why = f"nothing has run for {span(waiting.seconds)}, and no node takes jobs: {waiting.nodes_in_words}"
            raise UnhealthyHostError(f"{why}; {HELP}; then the same command continues")

    def _tell_waiting(self) -> None:
        """Report what waits, and why, unless that was reported already."""
        if text := self._waiting.step():
            self.display.step(text)
        if text := self._waiting.line():
            self.display.notice(text)

    def _update(self, one: _Followed, job: JobSeen | None) -> None:
        run_id, results = one.pending.run_id, self.bench.results
        one.begun = one.begun or results.run_folder(run_id).exists()
        one.job = job
        if job is None and not one.begun:
            # The job was never submitted, or the scheduler forgot it. It may be submitted again, once before the next
            # look.
            one.submitted, one.over_since = False, None
            return
        one.submitted = True
        if job and job.never:
            self.dispatcher.cancel([run_id])
            raise UserError(f"run {run_id} would wait for ever: {job.never}; change hosts: in the matrix file")
        if job and job.phase != "over":
            one.over_since = None
            return
        one.over_since = one.over_since or time.monotonic()
        if time.monotonic() - one.over_since >= self.dispatcher.settle_seconds and not results.has_record(run_id):
            self._ended_without_record(one, job)

    def _ended_without_record(self, one: _Followed, job: JobSeen | None) -> None:
        run_id, results = one.pending.run_id, self.bench.results
        intent = results.intent(run_id)
        if intent is None:
            one.tries += 1
            if one.tries >= MOST_TRIES:
                said = self.dispatcher.last_output_line(run_id)
                raise UserError(f"{one.tries} jobs of run {run_id} ended before it began; the last one said: {said}")
            one.submitted, one.over_since, one.job = False, None, None
            return
        asks = one.closings < len(CLOSING_PAUSES) and time.monotonic() >= one.asks_from
        closing = self.dispatcher.request_record(intent, job, asks=asks)
        if closing in ("asked", "under-way", "left-none"):
            one.gone_since = None
            self._asked_for_record(one, intent, closing)
            return
        one.gone_since = one.gone_since or time.monotonic()
        if closing == "unkillable" or time.monotonic() - one.gone_since >= self.dispatcher.gone_seconds:
            with shielded():
                if not results.has_record(run_id):
                    drained = (
                        DRAINED.format(self.dispatcher.last_output_line(run_id)) if closing == "unkillable" else ""
                    )
                    results.finish(record_of_lost(intent, results, drained))

    def _asked_for_record(self, one: _Followed, intent: Intent, closing: Closing) -> None:
        """Report that a node is asked for the record of a run, or, once, that all requests left no record."""
        run_id, node = intent.run_id, intent.scheduled.node if intent.scheduled else "its node"
        if closing == "asked":
            again = f" again; {self._left_none(run_id)}" if one.closings else ""
            self.display.step(f"{run_id}: its job ended without a record; asking {node} for one{again}")
            one.asks_from = time.monotonic() + CLOSING_PAUSES[one.closings]
            one.closings += 1
            return
        exhausted = one.closings == len(CLOSING_PAUSES) and time.monotonic() >= one.asks_from
        if closing == "left-none" and exhausted and not one.without_record:
            one.without_record = (
                f"run {run_id} ended without a record; {node} was asked {one.closings} times; "
                f"{self._left_none(run_id)}; once that is fixed, the same command continues"
            )
            self.display.problem(one.without_record)

    def _left_none(self, run_id: str) -> str:
        return f"the last job for it said: {self.dispatcher.last_output_line(run_id, closing=True) or 'nothing'}"

    def _submit(self) -> None:
        if self._silent_since is not None:
            return
        waiting = [one for one in self._followed.values() if not one.submitted and one.job is None]
        for one in waiting[:SUBMITTED_BETWEEN]:
            with shielded():
                one.submitted = self.dispatcher.submit(self._request(one))
            if not one.submitted:
                # The job may have been submitted all the same: the next look shows that.
                self._asked = time.monotonic()
                self._silent_since = self._silent_since or time.monotonic()
                return

    def _request(self, one: _Followed) -> RunRequest:
        bench, planned = self.bench, one.pending.planned
        return RunRequest(
            run_id=one.pending.run_id,
            campaign=self.campaign,
            repeat=planned.repeat,
            gpus=planned.gpus,
            stack=planned.cell.stack,
            preset=planned.cell.preset,
            workload=one.workload,
            executor=bench.executor_name,
            data=str(bench.data.absolute()) if bench.data else None,
            interpreter=str(bench.interpreter.absolute()) if bench.interpreter else None,
            verifying=bench.verifying,
            images=bench.images_of(planned.cell),
            kind=bench.host.kind,
        )

    def _show_record(self, one: _Followed, record: Record) -> None:
        display = self._shown.lane_of(one.pending.run_id)
        if display is None:
            display, scheduled = self.display, record.intent.scheduled
            elsewhere = Elsewhere(scheduled.node if scheduled else None, self.done or 0)
            display.started(one.pending.planned, one.pending.position, self.total, elsewhere)
        try:
            Index(self.bench.results).add(record)
        except UserError as error:
            display.problem(str(error))
        display.finished(record)
        if record.outcome != "interrupted" and record.diagnosis != NOT_BEGUN:
            self.done = (self.done or 0) + 1
        if record.diagnosis != NOT_BEGUN:
            self.dispatcher.note_host(record.intent)
        elif not self.dispatcher.avoid(record.intent, self.phases()[0]):
            self.dispatcher.cancel(self.phases()[0])
            why = f"no node is left that can begin runs: {record.detail}"
            raise UnhealthyHostError(f"{why}; then the same command continues")
