"""Makes runs side by side, each on its own GPUs and in its own process, which watches it and writes its record."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from harness.base.errors import UserError
from harness.base.interrupts import open_to_interruption, shielded, signal_of
from harness.campaign.bench.bench import Bench, gpus_needed
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun
from harness.campaign.helpers.helper import Helper, Message, Tell, listen
from harness.campaign.helpers.portable_bench import PortableBench
from harness.campaign.other_hosts.follow import CONTINUES
from harness.campaign.runner import InterruptedRunError, Runner
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.matrix.workloads import Workload

# Events of a run that are shown; the process that began it shows the others itself.
SHOWN = ("preparing", "step", "started", "progress", "stalled", "finished", "notice", "problem")


@dataclass(frozen=True)
class SideRun:
    """One of several runs side by side; `beside` are the ids of the others."""

    bench: PortableBench
    pending: PendingRun
    workload: Workload
    campaign: str | None
    total: int
    beside: tuple[str, ...]

    def carry_out(self, tell: Tell) -> None:
        """Make the run, and add its record to the index."""
        runner = Runner(
            self.bench.open(), self.workload, cast("Display", _ForwardingDisplay(tell)), self.campaign, self.total
        )
        # The record says that the run was interrupted, and the process that began this one acts on it.
        with suppress(InterruptedRunError):
            runner.run([self.pending], change=lambda run: replace(run, beside=self.beside))


def that_may_share(pending: Iterable[PendingRun], bench: Bench) -> list[PendingRun]:
    """Return those of these runs of one cell that can begin now, one on each GPU.

    The list is empty if fewer than two can. Runs that use several GPUs, or none, have the host to themselves.
    """
    chosen: dict[int, PendingRun] = {}
    for one in pending:
        match gpus_needed(one.planned):
            case [gpu] if gpu not in chosen and bench.has_free_gpus_for(one.planned, one.run_id):
                chosen[gpu] = one
    return list(chosen.values()) if len(chosen) > 1 else []


def run_together(
    runner: Runner, pending: Sequence[PendingRun], seconds_left: float | None
) -> list[tuple[PendingRun, Record]]:
    """Make several runs at once whose environment and data are ready; return each with its record.

    An interruption reaches all of them. After an error in one run, the others run to their end.

    Raises:
        InterruptedRunError: when a run was interrupted, but not by the user, as in `Runner.run`.
        UserError: when the results folder cannot be written, or the engine is gone.
        KeyboardInterrupt: after all runs were recorded.
    """
    if runner.bench.dispatcher:
        return runner.run_elsewhere(pending, runner.bench.dispatcher)
    runner.await_engine()
    ids = [one.run_id for one in pending]
    bench = PortableBench.of(runner.bench)
    jobs = [
        SideRun(bench, one, runner.workload, runner.campaign, runner.total, tuple(i for i in ids if i != one.run_id))
        for one in pending
    ]
    lanes = [runner.display.lane(number) for number in range(len(jobs))]
    runner.display.time_left(seconds_left)
    with shielded():
        helpers: list[Helper] = []
        try:
            helpers += map(Helper.begin, jobs)
            _listen(helpers, lanes)
            made = [(one, _record(helper, runner, one)) for helper, one in zip(helpers, pending, strict=True)]
            runner.losses.note_records([record for _, record in made], runner.display.problem)
            return made
        finally:
            for helper in helpers:
                helper.close()


def _listen(helpers: Sequence[Helper], lanes: Sequence[Display]) -> None:
    """Show the messages of helpers until all have ended; if this process must stop, have them stop in order."""

    def heard(place: int, message: Message) -> None:
        if message.name in SHOWN:
            getattr(lanes[place], message.name)(*message.values)

    try:
        with open_to_interruption():
            listen(helpers, heard)
    except BaseException as caught:
        for helper in helpers:
            helper.signal(signal_of(caught))
        # Leaving before they have their records would kill them. A closed terminal shows nothing any more.
        with suppress(OSError, SystemExit):
            listen(helpers, heard)
        listen(helpers, lambda *_: None)
        raise


def _record(helper: Helper, runner: Runner, pending: PendingRun) -> Record:
    """Return the record that a helper wrote.

    Raises:
        UserError: when the helper reported an error, or left no record.
    """
    for message in helper.ended_with:
        if message.name == "error":
            raise UserError(message.values[0])
    record = runner.bench.results.record(pending.run_id)
    if record is None:
        helper.process.wait()
        raise UserError(
            f"run {pending.run_id}: the process that watched it ended with status {helper.process.returncode} and left "
            f"no record: {helper.stderr_tail or 'it said nothing'}; {CONTINUES}"
        )
    return record


def seconds_spent(rows: Iterable[Row]) -> float:
    """Return the seconds in which at least one of these runs was under way; overlapping times count once."""
    spent = until = 0.0
    for started, finished in sorted((row.started, row.finished) for row in rows):
        spent += max(0.0, finished - max(started, until))
        until = max(until, finished)
    return spent


class _ForwardingDisplay:
    """A display that sends its events to another process."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self._tell(name, values)
