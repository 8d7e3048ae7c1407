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
from harness.evidence.files.app_files import Progress, Wait
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import MOST_RANKS, WorkFolder
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.reported.accounting import Accounting
from harness.evidence.reported.program_progress import ProgramProgress
from harness.evidence.reported.progress import ProgressReader
from harness.evidence.reported.step_position import read_position
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
# Helpers of Python's multiprocessing end by themselves, soon after the process that they helped.
SETTLE_SECONDS = 3.0
# A pause that takes so long: this process was stopped, or its machine, and the run may have been, too.
UNSEEN_SECONDS = 15.0
# Who interrupts a run that was stalled for longer than that may want to know where.
STUCK_SECONDS = 30.0

Observer = Callable[[Progress], None]
# Told about once a second of the rank that advanced last, while none advances.
OnStall = Callable[[RankStall], None]


@dataclass(frozen=True)
class Started:
    """A process that was started at `began`, on the monotonic clock. `hangs` is None where it tells no progress."""

    handle: Handle
    began: float
    hangs: HangWatch | None

    @property
    def watchdog(self) -> Watchdog | None:
        """The watchdog of its ranks."""
        return self.hangs.watchdog if self.hangs else None


class Watch:
    """Runs and watches the processes of one run, and as a context manager ends what they leave behind.

    After `stopped_by` is set nothing more is to be started. `gpus` is None on a CPU. `accounting` takes the progress; a
    run whose progress is a breach is ended. `work`: the folder that has the progress, by default the run's. `ranks`:
    how many it has; no progress of others is read. `sensors`: takes note of its GPUs while it runs. `program`: the
    progress of a program of the user's own, which is not asked for its stacks: its signals may mean anything. `say`:
    takes a line when a Docker engine that does not answer is waited for; nothing is taken for a hang then.

    `longest_stall`: the longest time without an advance, by phase, seconds. `seconds`: how long the processes ran that
    tell their progress. `idle`: the rank that had advanced last when they were interrupted. `survivors`: what was
    left of processes that had ended by themselves, and was ended then.
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
        self._folder = folder.path
        self._observe = observe
        self._on_stall = on_stall
        self._engine = EngineWatch(executor, say)
        # As it was before the app began: whatever it makes of its folder, no other is read.
        self._work = work or folder.work
        self.progress = ProgressWatch(program or ProgressReader(self._work, ranks), ranks, accounting)
        self._collector = Collector(folder, self._work, root, tells_stacks=program is None, on_gpus=gpus is not None)
        self._computes = (sensors.computes if sensors else lambda _: False) if program else None
        self._gpus = gpus
        self._sensors = sensors
        # What verifies a run has no part in what the run took.
        self._disk = DiskWatch((Path(work.path) if work else folder.path, folder.temporary))
        self._sampled = -math.inf
        self.stopped_by: StoppedBy | None = None
        self.stop_detail = ""
        self.longest_stall: dict[Wait, float] = {}
        self.seconds = 0.0
        self.idle: RankStall | None = None
        self.survivors: tuple[str, ...] = ()

    @property
    def collected(self) -> bool:
        """Return whether there is evidence of a failure in the run folder."""
        return self._collector.collected

    @property
    def gpus_seen(self) -> int | None:
        """On how many of its GPUs the run was seen from outside."""
        return self._gpus.used if self._gpus else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sensors:
            self._sensors.close()
        self.sweep()

    def execute(self, job: Job, limit: float, phase_limits: Limits | None = None) -> Exit | None:
        """Run one process for `limit` seconds at most; return how it ended, None where nobody can say.

        `phase_limits` are the watchdog's. Without them the process is not expected to tell its progress, and no
        evidence is collected when it fails.

        Raises:
            KeyboardInterrupt: of the kind that came, when the process was ended; its text says where the ranks stalled,
                had none advanced.
        """
        began = time.monotonic()
        self.progress.begin(began)
        # By what is free before it can take anything.
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
            # What was stopped before stays what it was.
            if self.stopped_by is None:
                self.stopped_by, self.stop_detail = "engine", str(lost)
            started.handle.stop(GRACE_SECONDS)
            return None
        except KeyboardInterrupt as interrupt:
            where = ""
            try:
                # Whatever the app wrote, it was interrupted.
                with suppress(Exception):
                    where = self._keep_stacks_of_stuck(started)
            finally:
                started.handle.stop(GRACE_SECONDS)
                with suppress(Exception):
                    # An interrupted app made a checkpoint, which its last lines account for.
                    deque(self.progress.rest(None, time.monotonic()), maxlen=0)
            if where:
                # Of its own kind, which says what is to follow.
                raise type(interrupt)(f"{str(interrupt) or 'Ctrl-C'}; {where}") from None
            raise
        except BaseException:
            started.handle.stop(GRACE_SECONDS)
            raise
        finally:
            if started.hangs:
                self.seconds += time.monotonic() - began

    def sweep(self) -> None:
        """End whatever the run left behind."""
        if not end_processes_of_run(self._folder, GRACE_SECONDS):
            self.stopped_by, self.stop_detail = "host", cannot_be_killed(self._folder)

    def look_at_disk(self) -> None:
        """Note that a run that has ended took too much of the disk, where nothing else had stopped it."""
        if self.stopped_by is None and (excess := self._disk.last_excess()):
            self.stopped_by, self.stop_detail = "disk-limit", excess

    def _hang_watch(self, began: float, limits: Limits | None) -> HangWatch | None:
        if limits is None:
            return None
        dog = Watchdog(began, limits, partial(read_position, self._work))
        return HangWatch(dog, self._collector.take_stacks, self._on_stall, self._computes)

    def _until_end(self, started: Started, limit: float) -> float:
        """Watch until the process has ended, or is ended; when that was decided, on the monotonic clock."""
        handle, watchdog = started.handle, started.watchdog
        while handle.poll() is None:
            now = time.monotonic()
            if mounted := mount_in(self._folder):
                self._stop(handle, "work-folder", mounted)
                return now
            self._read_progress(watchdog, now)
            self._sample(now)
            self._engine.note_silence(handle, watchdog)
            if started.hangs:
                started.hangs.tell_of_stall(now)
            if reason := self._reason_to_stop(started, now, limit):
                self._stop(handle, *reason)
                return now
            asleep = time.monotonic()
            pause(POLL_SECONDS, partial(belongs_to_run, folder=self._folder))
            unseen = time.monotonic() - asleep
            if watchdog and unseen > UNSEEN_SECONDS:
                watchdog.forgive(unseen)
        return time.monotonic()

    def _reason_to_stop(self, started: Started, now: float, limit: float) -> tuple[StoppedBy, str] | None:
        """Return what ends a process that runs, and why in words; of a hang or a limit the evidence is kept by then."""
        if started.hangs and self.progress.breaches:
            return "breach", "; ".join(self.progress.breaches)
        if hang := self._confirmed(started, now):
            return "watchdog", "; ".join([hang.why, *self._collector.keep(hang.samples)])
        if excess := self._disk.excess(now):
            # Nothing is collected: that takes a while, and it goes on writing.
            return "disk-limit", excess
        if now - started.began > limit + started.handle.silent_seconds:
            if started.hangs:
                self._collector.keep(self._collector.samples(2))
            return "time-limit", f"still running after {limit:.0f} s"
        return None

    def _confirmed(self, started: Started, now: float) -> Hang | None:
        """Return a hang of what runs; an engine that was restarted may have ended what seems to hang."""
        handle, hangs = started.handle, started.hangs
        if hangs is None or handle.unanswered:
            return None
        hang = hangs.find(now, lambda: self._read_progress(hangs.watchdog, time.monotonic()))
        return hang if hang and handle.poll() is None and not handle.unanswered else None

    def _after_end(self, started: Started, ended: float) -> Exit | None:
        """Take note of what a process left, which `ended` at that time; return how."""
        if self.stopped_by is None and (mounted := mount_in(self._folder)):
            self.stopped_by, self.stop_detail = "work-folder", mounted
            # What may serve it is ended before anything there is read.
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
        """Look at what is gone once the run has ended."""
        if now - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = now
        # An unhealthy driver may keep whoever asks it, but not this watch.
        if self._gpus:
            self._gpus.look(partial(is_of_run, folder=self._folder))
        if self._sensors:
            self._sensors.look()
        self._collector.look()

    def _keep_stacks_of_stuck(self, started: Started) -> str:
        """The evidence of a hang, where an interrupted run looks like one; where its ranks stand, in words."""
        if (hangs := started.hangs) is None:
            return ""
        # Not observed any more: that must not put another interruption in the place of this one.
        deque(self.progress.new(hangs.watchdog, time.monotonic()), maxlen=0)
        stalled = hangs.watchdog.at_work(time.monotonic())
        self.idle = min(stalled, key=lambda one: one.idle)
        idle = self.idle.idle
        if idle <= STUCK_SECONDS or self.collected or started.handle.poll() is not None:
            return ""
        with skippable(f"no rank advanced for {idle:.0f} s: keeping the stacks first; once more skips that"):
            samples = self._collector.samples(2)
            self._collector.keep(samples)
            return f"{hangs.describe(stalled, samples[-1])}; what was seen is in {RunFolder.FAILURE}/"
        return ""

    def _stop(self, handle: Handle, by: StoppedBy, detail: str) -> None:
        gone = handle.stop(GRACE_SECONDS)
        self.stopped_by = by if gone else "host"
        self.stop_detail = detail if gone else f"{detail}, and {cannot_be_killed(self._folder)}"
