"""Runs the processes of one run and watches each to its end."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.base.interrupts import GRACE_SECONDS, skippable
from harness.base.time_limits import Look
from harness.environments.executors.job import EngineSilent, Executor, Exit, Handle, Job, JobLost
from harness.evidence.accounting import Accounting
from harness.evidence.app_files import Progress, Wait
from harness.evidence.exposure import ExposureWatch
from harness.evidence.memory import MemoryHistory
from harness.evidence.outcome.diagnoses import StoppedBy
from harness.evidence.program_progress import ProgramProgress
from harness.evidence.progress import ProgressReader
from harness.evidence.rank_account import SeenAt
from harness.evidence.run_folder import RunFolder
from harness.evidence.step_position import Position, read_position
from harness.evidence.work_folder import MOST_RANKS, WorkFolder
from harness.host.cgroup import MemoryGroupWatch
from harness.host.disk_use import DiskWatch
from harness.host.engine import AGAIN_SECONDS, WAIT_SECONDS, WAITING
from harness.host.gpu_memory import GpuWatch
from harness.host.run_processes import cannot_be_killed, end_processes_of_run, is_of_run, look_at_processes, survivors
from harness.run.watch.collect import FailureScene, collect
from harness.run.watch.confirm import Confirmation, Hang
from harness.run.watch.gpu_sensors import SensorWatch
from harness.run.watch.limits import Limits, RankStall, Watchdog
from harness.run.watch.python_stacks import StackSample, take_stacks
from harness.run.watch.stalled_rank import describe_hang

POLL_SECONDS = 0.1
SAMPLE_SECONDS = 1.0
TELL_SECONDS = 1.0
# Helpers of Python's multiprocessing end by themselves, soon after the process that they helped.
SETTLE_SECONDS = 3.0
# At the end, for what was written while nobody looked: of eight ranks the lines of some hours.
MOST_LAST_LOOKS = 32
# Between the two samples of the stacks of what is not suspected to hang, and yet is to be stopped.
BETWEEN_SAMPLES_SECONDS = 1.0
# A pause that takes so long: this process was stopped, or its machine, and the run may have been, too.
UNSEEN_SECONDS = 15.0
# A program of the user's own that tells nothing, while its GPU computes, has so many times its limit.
WHILE_COMPUTING = 3.0
# Who interrupts a run that was stalled for longer than that may want to know where.
STUCK_SECONDS = 30.0

Observer = Callable[[Progress], None]
# Takes a line on what is waited for.
Say = Callable[[str], object]
# Told about once a second of the rank that advanced last, while none advances.
OnStall = Callable[[RankStall], None]


class Watch:
    """Runs and watches the processes of one run, and as a context manager ends what they leave behind.

    After `stopped_by` is set nothing more is to be started. `gpus` is None on a CPU. `accounting` takes the progress; a
    run whose progress is a breach is ended. `work`: the folder that has the progress, by default the run's. `ranks`:
    how many it has; no progress of others is read. `sensors`: takes note of its GPUs while it runs. `program`: the
    progress of a program of the user's own, which is not asked for its stacks: its signals may mean anything. `say`:
    takes a line when a Docker engine that does not answer is waited for; nothing is taken for a hang then.

    `longest_stall`: the longest time without an advance, by phase, seconds. `seconds`: how long the processes ran that
    tell their progress. `exposure` is of those. `idle`: the rank that had advanced last when they were interrupted.
    `collected`: whether there is evidence of a failure in the run folder. `survivors`: what was left of processes that
    had ended by themselves, and was ended then.
    """

    def __init__(
        self,
        folder: RunFolder,
        executor: Executor,
        observe: Observer,
        gpus: GpuWatch | None,
        on_stall: OnStall = lambda _: None,
        root: Path = Path("/"),
        accounting: Accounting | None = None,
        work: WorkFolder | None = None,
        ranks: int = MOST_RANKS,
        sensors: SensorWatch | None = None,
        program: ProgramProgress | None = None,
        say: Say = lambda _: None,
    ) -> None:
        self._folder = folder
        self._root = root
        self._executor = executor
        self._observe = observe
        self._on_stall = on_stall
        self._say = say
        self._silent = 0.0
        self._told = -math.inf
        # As it was before the app began: whatever it makes of its folder, no other is read.
        self._work = work or folder.work
        self._reader = program or ProgressReader(self._work, ranks)
        self._asks_for_stacks = program is None
        self._ranks = ranks
        self._accounting = accounting
        # When all lines that there were had been read.
        self._all_read = self._started = time.monotonic()
        self._gpus = gpus
        self._gpu_look: Look[None] | None = None
        self._sensors = sensors
        self._memory_group: MemoryGroupWatch | None = None
        # What verifies a run has no part in what the run took.
        self._disk = DiskWatch((Path(work.path) if work else folder.path, folder.temporary))
        self._sampled = -math.inf
        self.memory = MemoryHistory()
        self.last: Progress | None = None
        self.stopped_by: StoppedBy | None = None
        self.stop_detail = ""
        self.longest_stall: dict[Wait, float] = {}
        self.seconds = 0.0
        self.exposure = ExposureWatch()
        self.idle: RankStall | None = None
        self.collected = False
        self.survivors: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._started = began
        watchdog = Watchdog(began, phase_limits) if phase_limits else None
        # By what is free before it can take anything.
        _ = self._disk.limit
        try:
            handle = self._start(job)
        except JobLost as lost:
            self.stopped_by, self.stop_detail = "engine", str(lost)
            return None
        except (OSError, ValueError) as error:
            self.stopped_by, self.stop_detail = "start", f"{job.arguments[0]} could not be started: {error}"
            return None
        try:
            ended = self._until_end(handle, watchdog, began, limit)
            self._read_rest(watchdog, ended)
            exit_ = handle.poll()
            if watchdog:
                self._keep_longest_stall(watchdog.longest_stall(ended))
            if watchdog and exit_ and not exit_.ok and not self.collected:
                self._collect(handle, began, self._samples(1))
            self._note_survivors(exit_)
            self.sweep()
            self.look_at_disk()
            return exit_
        except JobLost as lost:
            # What was stopped before stays what it was.
            if self.stopped_by is None:
                self.stopped_by, self.stop_detail = "engine", str(lost)
            handle.stop(GRACE_SECONDS)
            return None
        except KeyboardInterrupt as interrupt:
            where = ""
            try:
                # Whatever the app wrote, it was interrupted.
                with suppress(Exception):
                    where = self._keep_stacks_of_stuck(handle, watchdog, began) if watchdog else ""
            finally:
                handle.stop(GRACE_SECONDS)
                with suppress(Exception):
                    self._account_for_rest()
            if where:
                # Of its own kind, which says what is to follow.
                raise type(interrupt)(f"{str(interrupt) or 'Ctrl-C'}; {where}") from None
            raise
        except BaseException:
            handle.stop(GRACE_SECONDS)
            raise
        finally:
            if watchdog:
                self.seconds += time.monotonic() - began

    def _start(self, job: Job) -> Handle:
        """Start a process; an engine that does not answer is waited for."""
        until, told = time.monotonic() + WAIT_SECONDS, False
        while True:
            try:
                return self._executor.start(job)
            except EngineSilent:
                if time.monotonic() >= until:
                    raise
            if not told:
                self._say(WAITING)
                told = True
            time.sleep(AGAIN_SECONDS)

    def _until_end(self, handle: Handle, watchdog: Watchdog | None, began: float, limit: float) -> float:
        """Watch until the process has ended, or is ended; when that was decided, on the monotonic clock."""
        confirmation = Confirmation(self._take_stacks)
        self._memory_group = None
        self._silent = 0.0
        while handle.poll() is None:
            now = time.monotonic()
            self._read_progress(watchdog, now)
            self._sample(handle, now)
            if watchdog and self._accounting and self._accounting.breaches:
                self._stop(handle, "breach", "; ".join(self._accounting.breaches))
                return now
            self._note_silence(handle, watchdog)
            if watchdog:
                self._report_stall(watchdog, now)
            if (
                watchdog
                # An engine that was restarted may have ended what seems to hang.
                and not handle.unanswered
                and (confirmed := self._confirm(watchdog, confirmation, now))
                and handle.poll() is None
                and not handle.unanswered
            ):
                hang, stalled = confirmed
                words = _words(hang, stalled, watchdog.ranks)
                notes = self._collect(handle, began, hang.samples)
                self._stop(handle, "watchdog", "; ".join([words, *notes]))
                return now
            if excess := self._disk.excess(now):
                # Before anything is collected: that takes a while, and it goes on writing.
                self._stop(handle, "disk-limit", excess)
                return now
            if now - began > limit + handle.silent_seconds:
                if watchdog:
                    self._collect(handle, began, self._samples(2))
                self._stop(handle, "time-limit", f"still running after {limit:.0f} s")
                return now
            asleep = time.monotonic()
            time.sleep(POLL_SECONDS)
            unseen = time.monotonic() - asleep
            if watchdog and unseen > UNSEEN_SECONDS:
                watchdog.forgive(unseen)
        return time.monotonic()

    def _note_silence(self, handle: Handle, watchdog: Watchdog | None) -> None:
        """Say that an engine which does not answer is waited for, and that it answers again."""
        if handle.unanswered:
            if not self._silent:
                self._say(WAITING)
            self._silent = handle.silent_seconds
        elif self._silent:
            self._say(f"the Docker engine answers again after {self._silent:.0f} s, and the container runs on")
            if watchdog:
                # What writes to an engine that is away waits for it.
                watchdog.forgive(self._silent)
            self._silent = 0.0

    def _note_survivors(self, exit_: Exit | None) -> None:
        if self.stopped_by is None:
            self.survivors += survivors(self._folder.path, SETTLE_SECONDS if exit_ and exit_.ok else 0)

    @property
    def gpus_seen(self) -> int | None:
        """On how many of its GPUs the run was seen from outside."""
        return self._gpus.used if self._gpus else None

    @property
    def odd_files(self) -> Mapping[str, str]:
        """The progress files that no app writes so, by name, and why."""
        replaced = dict.fromkeys(self._reader.replaced, "was replaced")
        return {**dict.fromkeys(self._reader.refused, f"is of no rank of {self._ranks}"), **replaced}

    def sweep(self) -> None:
        """End whatever the run left behind."""
        if not end_processes_of_run(self._folder.path, GRACE_SECONDS):
            self.stopped_by, self.stop_detail = "host", cannot_be_killed(self._folder.path)

    def look_at_disk(self) -> None:
        """Note that a run that has ended took too much of the disk, where nothing else had stopped it."""
        if self.stopped_by is None and (excess := self._disk.last_excess()):
            self.stopped_by, self.stop_detail = "disk-limit", excess

    def _read_progress(self, watchdog: Watchdog | None, now: float) -> None:
        for line in self._noted(watchdog, now):
            self._observe(line)

    def _read_rest(self, watchdog: Watchdog | None, now: float) -> None:
        for _ in range(MOST_LAST_LOOKS):
            self._read_progress(watchdog, now)
            if not self._reader.behind:
                return

    def _account_for_rest(self) -> None:
        """Take the lines that an interrupted app wrote last: it made a checkpoint, which they account for."""
        for _ in range(MOST_LAST_LOOKS):
            for _ in self._noted(None, time.monotonic()):
                pass
            if not self._reader.behind:
                return

    def _noted(self, watchdog: Watchdog | None, now: float) -> Iterator[Progress]:
        """The new lines, each when note was taken of it: who observes them may end the run at one that advances."""
        began, none = time.monotonic(), True
        for line in self._reader.new():
            none = False
            if self._accounting:
                self._accounting.saw(line, SeenAt(self._all_read, time.monotonic(), self._started))
            if not 0 <= line.rank < self._ranks:
                continue
            self.last = line
            self.memory.saw(line)
            if watchdog:
                self.exposure.saw(line, now)
                watchdog.saw(line, now)
            yield line
        if none and not self._reader.behind:
            self._all_read = began

    def _report_stall(self, watchdog: Watchdog, now: float) -> None:
        if now - self._told < TELL_SECONDS:
            return
        self._told = now
        nearest = min(watchdog.at_work(now, self._position), key=lambda one: one.idle)
        if nearest.idle >= TELL_SECONDS:
            self._on_stall(nearest if self._asks_for_stacks else replace(nearest, limit=_whole_limit(nearest)))

    def _sample(self, handle: Handle, now: float) -> None:
        """Look at what is gone once the run has ended."""
        if now - self._sampled < SAMPLE_SECONDS:
            return
        self._sampled = now
        # An unhealthy driver may keep whoever asks it, but not this watch.
        if self._gpus and (self._gpu_look is None or self._gpu_look.done):
            self._gpu_look = Look(partial(self._gpus.sample, partial(is_of_run, folder=self._folder.path)))
        if self._sensors:
            self._sensors.look()
        if self._memory_group:
            self._memory_group.look()
        elif handle.pid:
            self._memory_group = MemoryGroupWatch(handle.pid)

    def _confirm(
        self, watchdog: Watchdog, confirmation: Confirmation, now: float
    ) -> tuple[Hang, Sequence[RankStall]] | None:
        late = watchdog.late(now, self._position)
        hang = confirmation.judge(watchdog.suspects(now, self._position), late, now)
        if hang is None:
            return None
        # Taking the last sample took its time.
        self._read_progress(watchdog, time.monotonic())
        stalled = watchdog.stalled(now, self._position)
        return (hang, stalled) if stalled and not self._computes(stalled) else None

    def _computes(self, stalled: Sequence[RankStall]) -> bool:
        """Return whether a program that tells nothing is seen from outside to work all the same, for a while yet."""
        if self._asks_for_stacks or self._sensors is None:
            return False
        limit = max(_whole_limit(one) for one in stalled)
        return min(one.idle for one in stalled) <= WHILE_COMPUTING * limit and self._sensors.computes(limit)

    def _position(self, rank: int) -> Position | None:
        return read_position(self._work, rank)

    def _take_stacks(self) -> StackSample:
        if not self._asks_for_stacks:
            # It has no other rank, and does not say so.
            processes = tuple(replace(one, rank=0) for one in look_at_processes(self._folder.path))
            return StackSample(time.monotonic(), time.time(), processes, (), {})
        return take_stacks(self._work, look_at_processes(self._folder.path))

    def _samples(self, count: int) -> tuple[StackSample, ...]:
        samples = [self._take_stacks()]
        while samples[0].stacks and len(samples) < count:
            time.sleep(BETWEEN_SAMPLES_SECONDS)
            samples.append(self._take_stacks())
        return tuple(samples)

    def _collect(self, handle: Handle, began: float, samples: tuple[StackSample, ...]) -> tuple[str, ...]:
        """Keep the evidence while it is there; what of it is worth a word."""
        self.collected = True
        group = self._memory_group
        scene = FailureScene(
            began=began,
            samples=samples,
            processes=look_at_processes(self._folder.path),
            container=handle.inspected,
            memory_group=group.summary if group else None,
            root=self._root,
        )
        notes = collect(self._folder, scene)
        return notes if self._gpus else ()

    def _keep_stacks_of_stuck(self, handle: Handle, watchdog: Watchdog, began: float) -> str:
        """The evidence of a hang, where an interrupted run looks like one; where its ranks stand, in words."""
        # Not observed any more: that must not put another interruption in the place of this one.
        for _ in self._noted(watchdog, time.monotonic()):
            pass
        stalled = watchdog.at_work(time.monotonic(), self._position)
        self.idle = min(stalled, key=lambda one: one.idle)
        idle = self.idle.idle
        if idle <= STUCK_SECONDS or self.collected or handle.poll() is not None:
            return ""
        with skippable(f"no rank advanced for {idle:.0f} s: keeping the stacks first; once more skips that"):
            samples = self._samples(2)
            self._collect(handle, began, samples)
            return f"{describe_hang(stalled, watchdog.ranks, samples[-1])}; what was seen is in {RunFolder.FAILURE}/"
        return ""

    def _keep_longest_stall(self, seen: Mapping[Wait, float]) -> None:
        for phase, seconds in seen.items():
            self.longest_stall[phase] = max(seconds, self.longest_stall.get(phase, 0.0))

    def _stop(self, handle: Handle, by: StoppedBy, detail: str) -> None:
        gone = handle.stop(GRACE_SECONDS)
        self.stopped_by = by if gone else "host"
        self.stop_detail = detail if gone else f"{detail}, and {cannot_be_killed(self._folder.path)}"


def _whole_limit(one: RankStall) -> float:
    """Return the seconds after which a rank hangs that gives no stacks."""
    return 2 * one.limit


def _words(hang: Hang, stalled: Sequence[RankStall], heard: Collection[int]) -> str:
    told = describe_hang(stalled, heard, hang.samples[-1])
    return f"{told} ({hang.why})" if hang.why else told
