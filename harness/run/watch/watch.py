"""Runs the processes of one run and watches each to its end."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from harness.base.interrupts import GRACE_SECONDS, pause, skippable
from harness.environments.executors.job import Executor, Exit, Handle, Job, JobLost
from harness.evidence.app_reports.accounting import Accounting
from harness.evidence.app_reports.program_progress import ProgramProgress
from harness.evidence.app_reports.progress import ProgressReader
from harness.evidence.app_reports.step_position import read_position
from harness.evidence.files.app_files import Progress, Wait
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import MOST_RANKS, WorkFolder
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.host.disk_use import DiskWatch
from harness.host.file_systems import mount_in
from harness.host.gpus.gpu_memory import GpuWatch
from harness.host.processes.run_processes import (
    belongs_to_run,
    cannot_be_killed,
    end_processes_of_run,
    is_of_run,
    survivors,
)
from harness.run.watch.collect import Collector
from harness.run.watch.confirm import Hang, HangWatch
from harness.run.watch.engine_watch import EngineWatch, Say
from harness.run.watch.gpu_sensors import SensorWatch
from harness.run.watch.limits import Limits
from harness.run.watch.progress_watch import ProgressWatch
from harness.run.watch.watchdog import RankStall, Watchdog

POLL_SECONDS = 0.1
SAMPLE_SECONDS = 1.0
# Time for helpers of Python's multiprocessing, which end soon after the process that they helped, in seconds.
SETTLE_SECONDS = 3.0
# A longer pause than this, in seconds, means that this process or its machine was suspended, and perhaps the run, too.
UNSEEN_SECONDS = 15.0
# If a run that is interrupted has stalled for longer than this, its stacks are kept first, in seconds.
STUCK_SECONDS = 30.0
# Shortest stall that is noted for `matrix watch`, in seconds.
NOTED_STALL_SECONDS = 5.0

Observer = Callable[[Progress], None]
# Called about once a second, while no rank advances, with the rank that advanced last.
OnStall = Callable[[RankStall], None]


@dataclass(frozen=True)
class Started:
    """A process that was started at `began`, on the monotonic clock. `hangs`: None where it reports no progress."""

    handle: Handle
    began: float
    hangs: HangWatch | None

    @property
    def watchdog(self) -> Watchdog | None:
        """The watchdog of the process's ranks; None where it reports no progress."""
        return self.hangs.watchdog if self.hangs else None


class Watch:
    """Runs and watches the processes of one run, and as a context manager ends what they leave behind.

    Nothing more is to be started once `stopped_by` is set.

    Args:
        folder: The run folder.
        executor: Starts the processes.
        observe: Called with each progress line.
        gpus: Watches the memory of the run's GPUs; None on a CPU.
        on_stall: Called about once a second, while no rank advances, with the rank that advanced last.
        root: The root of the driver's files.
        accounting: Checks the progress; a run whose progress breaches the contract is stopped.
        work: The folder that has the progress; by default the run's own work folder.
        ranks: The number of ranks; progress of others is ignored.
        sensors: Samples the sensors of the run's GPUs.
        program: The progress of a program of the user's own. Such a program is not asked for its stacks, because a
            signal may mean anything to it.
        say: Called with a line of text while the Docker engine does not answer; meanwhile no run is judged to hang.

    Attributes:
        longest_stall: The longest time without an advance, by phase, in seconds.
        seconds: How long the processes ran that report progress.
        stall_at_interrupt: The rank that had advanced last when the run was interrupted.
        survivors: Processes that were still there after those of the run had ended by themselves; they were then ended.
        ended_with: How the process of `execute` ended by itself; None where it was stopped.
    """

    def __init__(
        self,
        folder: RunFolder,
        executor: Executor,
        observe: Observer = lambda _: None,
        gpus: GpuWatch | None = None,
        on_stall: OnStall = lambda _: None,
        root: Path = Path("/"),
        accounting: Accounting | None = None,
        work: WorkFolder | None = None,
        ranks: int = MOST_RANKS,
        sensors: SensorWatch | None = None,
        program: ProgramProgress | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._run_folder, self._folder, self._ranks = folder, folder.path, ranks
        self._observe = observe
        self._on_stall = on_stall
        self._noted: tuple[str, int, float] | None = None
        self._engine = EngineWatch(executor, say)
        # Opened before the app began: no other folder is read, whatever the app makes of its own.
        self._work = work or folder.work
        self.progress = ProgressWatch(program or ProgressReader(self._work, ranks), ranks, accounting)
        self._collector = Collector(folder, self._work, root, can_dump_stacks=program is None, on_gpus=gpus is not None)
        self._computes = (sensors.computes if sensors else lambda _: False) if program else None
        self._gpus = gpus
        self._sensors = sensors
        # The space that the run itself took does not count against the process that verifies it.
        self._disk = DiskWatch((Path(work.path) if work else folder.path, folder.temporary))
        self._sampled = -math.inf
        self.stopped_by: StoppedBy | None = None
        self.stop_detail = ""
        self.longest_stall: dict[Wait, float] = {}
        self.seconds = 0.0
        self.stall_at_interrupt: RankStall | None = None
        self.survivors: tuple[str, ...] = ()
        self.ended_with: Exit | None = None

    @property
    def collected(self) -> bool:
        """Return whether there is evidence of a failure in the run folder."""
        return self._collector.collected

    @property
    def gpus_seen(self) -> int | None:
        """The number of GPUs on which the run was seen from outside; None on a CPU."""
        return self._gpus.used if self._gpus else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sensors:
            self._sensors.close()
        self.sweep()

    def execute(self, job: Job, limit: float, phase_limits: Limits | None = None) -> Exit | None:
        """Run one process for `limit` seconds at most; return how it ended, None where that is not known.

        `phase_limits`: the watchdog's limits. Without them the process is not expected to report progress, and no
        evidence is collected when it fails.

        Raises:
            KeyboardInterrupt: of the type that interrupted it, once the process is ended; the text says where the ranks
                stalled if none had advanced.
        """
        began = time.monotonic()
        self.ended_with = None
        self.progress.begin(began)
        # The limit follows from the space that is free before the process can take any.
        _ = self._disk.limit
        hangs = self._hang_watch(began, phase_limits)
        try:
            started = Started(self._engine.start(job), began, hangs)
        except JobLost as lost:
            self.stopped_by, self.stop_detail = "engine", str(lost)
            return None
        except (OSError, ValueError) as error:
            self.stopped_by, self.stop_detail = "start", f"{job.arguments[0]} could not be started: {error}"
            return None
        try:
            self._collector.begin(started.handle, began)
            ended = self._until_end(started, limit)
            return self._after_end(started, ended)
        except JobLost as lost:
            # An earlier reason for the stop is kept.
            if self.stopped_by is None:
                self.stopped_by, self.stop_detail = "engine", str(lost)
            self._end(started.handle)
            return None
        except KeyboardInterrupt as interrupt:
            where = ""
            try:
                # The run counts as interrupted, whatever the app wrote.
                with suppress(Exception):
                    where = self._keep_stacks_of_stuck(started)
            finally:
                self._end(started.handle)
                with suppress(Exception):
                    # An interrupted app made a checkpoint, and its last progress lines account for that.
                    deque(self.progress.rest(None, time.monotonic()), maxlen=0)
            if where:
                # The type is kept, because it says what is to follow.
                raise type(interrupt)(f"{str(interrupt) or 'Ctrl-C'}; {where}") from None
            raise
        except BaseException:
            self._end(started.handle)
            raise
        finally:
            if started.hangs:
                self.seconds += time.monotonic() - began

    def sweep(self) -> None:
        """End all processes that the run left behind."""
        if not end_processes_of_run(self._folder, GRACE_SECONDS):
            self.stopped_by, self.stop_detail = "host", cannot_be_killed(self._folder)

    def look_at_disk(self) -> None:
        """Note that a run that has ended took too much of the disk, unless something else had stopped it."""
        if self.stopped_by is None and (excess := self._disk.last_excess()):
            self.stopped_by, self.stop_detail = "disk-limit", excess

    def _hang_watch(self, began: float, limits: Limits | None) -> HangWatch | None:
        if limits is None:
            return None
        dog = Watchdog(began, limits, partial(read_position, self._work))
        return HangWatch(dog, self._collector.take_stacks, self._note_stall, self._computes, self._ranks)

    def _note_stall(self, stall: RankStall) -> None:
        place = (stall.phase, stall.done, stall.limit)
        if stall.idle >= NOTED_STALL_SECONDS and place != self._noted:
            self._noted = place
            self._run_folder.note_stall(*place)
        self._on_stall(stall)

    def _until_end(self, started: Started, limit: float) -> float:
        """Watch until the process has ended or is stopped; return when that was decided, on the monotonic clock."""
        handle, watchdog = started.handle, started.watchdog
        while (exit_ := handle.poll()) is None:
            now = time.monotonic()
            if mounted := mount_in(self._folder):
                self._stop(handle, "work-folder", mounted)
                return now
            self._read_progress(watchdog, now)
            self._sample(now)
            self._engine.note_silence(handle, watchdog)
            if started.hangs:
                started.hangs.report_stall(now)
            if reason := self._reason_to_stop(started, now, limit):
                self._stop(handle, *reason)
                return now
            asleep = time.monotonic()
            pause(POLL_SECONDS, partial(belongs_to_run, folder=self._folder))
            unseen = time.monotonic() - asleep
            if watchdog and unseen > UNSEEN_SECONDS:
                watchdog.discount_unwatched(unseen)
        self.ended_with = exit_
        return time.monotonic()

    def _reason_to_stop(self, started: Started, now: float, limit: float) -> tuple[StoppedBy, str] | None:
        """Return why a process is to be stopped, also in words; evidence of a hang or a time limit is kept first."""
        if started.hangs and self.progress.breaches:
            return "breach", "; ".join(self.progress.breaches)
        if hang := self._confirmed(started, now):
            return "watchdog", "; ".join([hang.why, *self._collector.keep(hang.samples)])
        if excess := self._disk.excess(now):
            # No evidence is collected: that takes a while, in which the run would go on writing.
            return "disk-limit", excess
        if now - started.began > limit + started.handle.silent_seconds:
            if started.hangs:
                self._collector.keep(self._collector.samples(2))
            return "time-limit", f"still running after {limit:.0f} s"
        return None

    def _confirmed(self, started: Started, now: float) -> Hang | None:
        """Return a confirmed hang of the process, if it still runs: a restarted engine may have ended it meanwhile."""
        handle, hangs = started.handle, started.hangs
        if hangs is None or handle.unanswered:
            return None
        hang = hangs.find(now, lambda: self._read_progress(hangs.watchdog, time.monotonic()))
        return hang if hang and handle.poll() is None and not handle.unanswered else None

    def _after_end(self, started: Started, ended: float) -> Exit | None:
        """Note what a process left that ended at the time `ended`; return how it ended."""
        if self.stopped_by is None and (mounted := mount_in(self._folder)):
            self.stopped_by, self.stop_detail = "work-folder", mounted
            # A process that may serve the mounted file system is ended before anything there is read.
            self.sweep()
        for line in self.progress.rest(started.watchdog, ended):
            self._observe(line)
        exit_ = started.handle.poll()
        if watchdog := started.watchdog:
            for phase, seconds in watchdog.longest_stall(ended).items():
                self.longest_stall[phase] = max(seconds, self.longest_stall.get(phase, 0.0))
            if exit_ and not exit_.ok and not self.collected:
                self._collector.keep(self._collector.samples(1))
        if self.stopped_by is None:
            self.survivors += survivors(self._folder, SETTLE_SECONDS if exit_ and exit_.ok else 0)
        self.sweep()
        self.look_at_disk()
        return exit_

    def _read_progress(self, watchdog: Watchdog | None, now: float) -> None:
        for line in self.progress.new(watchdog, now):
            self._observe(line)

    def _sample(self, now: float) -> None:
        """Sample the GPU memory, the sensors and the control group: their counters disappear when the run ends."""
        if now - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = now
        # These looks do not wait for the driver: an unhealthy one may block its callers, but not this watch.
        if self._gpus:
            self._gpus.look(partial(is_of_run, folder=self._folder))
        if self._sensors:
            self._sensors.look()
        self._collector.look()

    def _keep_stacks_of_stuck(self, started: Started) -> str:
        """Keep the evidence of a hang, if an interrupted run looks like one; return in words where its ranks stall."""
        if (hangs := started.hangs) is None:
            return ""
        # Lines are no longer passed to `observe`, which might raise another interruption in place of this one.
        deque(self.progress.new(hangs.watchdog, time.monotonic()), maxlen=0)
        stalled = hangs.watchdog.unfinished_ranks(time.monotonic())
        self.stall_at_interrupt = min(stalled, key=lambda one: one.idle)
        idle = self.stall_at_interrupt.idle
        if idle <= STUCK_SECONDS or self.collected or started.handle.poll() is not None:
            return ""
        with skippable(f"no rank advanced for {idle:.0f} s: saving the stacks first; Ctrl-C once more skips that"):
            samples = self._collector.samples(2)
            self._collector.keep(samples)
            return f"{hangs.describe(stalled, samples[-1])}; the evidence is in {RunFolder.FAILURE}/"
        return ""

    def _stop(self, handle: Handle, by: StoppedBy, detail: str) -> None:
        gone = self._end(handle)
        self.stopped_by = by if gone else "host"
        self.stop_detail = detail if gone else f"{detail}, and {cannot_be_killed(self._folder)}"

    def _end(self, handle: Handle) -> bool:
        """End a process; return False if it, or something that it started, cannot be killed.

        An engine waits for ten seconds only, and keeps the container of a process that ends later.
        """
        if handle.stop(GRACE_SECONDS):
            return True
        in_container = handle.inspected is not None
        return in_container and end_processes_of_run(self._folder, GRACE_SECONDS) and handle.stop(GRACE_SECONDS)
