"""Runs the processes of one run and watches each to its end."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.containers import Container
from harness.contracts import Phase, Progress
from harness.executors import Executor, Exit, Handle, Job, JobLost
from harness.host.gpu_memory import GpuWatch
from harness.memory import MemoryHistory
from harness.outcome import StoppedBy
from harness.processes import end_processes_of_run, processes_of_run
from harness.progress import ProgressReader
from harness.watchdog import Watchdog

POLL_SECONDS = 0.1
GPU_SAMPLE_SECONDS = 1.0
# Time the app has to end its loader workers and to write its last lines.
GRACE_SECONDS = 10.0

Observer = Callable[[Progress], None]


class Watch:
    """The eye on one run. After `stopped_by` is set nothing more is to be started. `gpus` is None on a CPU."""

    def __init__(self, folder: Path, executor: Executor, observe: Observer, gpus: GpuWatch | None) -> None:
        self._folder = folder
        self._executor = executor
        self._observe = observe
        self._reader = ProgressReader(folder)
        self._gpus = gpus
        self.memory = MemoryHistory()
        self.last: Progress | None = None
        self.stopped_by: StoppedBy | None = None
        self.stop_detail = ""

    def execute(
        self,
        command: tuple[str, ...],
        variables: Mapping[str, str],
        log: str,
        limit: float,
        phase_limits: Mapping[Phase, float] | None = None,
        container: Container | None = None,
    ) -> Exit | None:
        """Run one process for `limit` seconds at most; how it ended, None where nobody can say.

        `phase_limits` are the watchdog's; without them the process is not expected to tell its progress.
        """
        began = time.monotonic()
        try:
            handle = self._executor.start(Job(command, variables, self._folder, self._folder / log, container))
        except JobLost as lost:
            self.stopped_by, self.stop_detail = "engine", str(lost)
            return None
        except (OSError, ValueError) as error:
            self.stopped_by, self.stop_detail = "start", f"{command[0]} could not be started: {error}"
            return None
        watchdog = Watchdog(began, phase_limits) if phase_limits else None
        try:
            self._until_end(handle, watchdog, began, limit)
            self._read_progress(watchdog, time.monotonic())
            self.sweep()
            return handle.poll()
        except JobLost as lost:
            self.stopped_by, self.stop_detail = "engine", str(lost)
            handle.stop(GRACE_SECONDS)
            return None
        except BaseException:
            handle.stop(GRACE_SECONDS)
            raise

    def _until_end(self, handle: Handle, watchdog: Watchdog | None, began: float, limit: float) -> None:
        sampled = 0.0
        while handle.poll() is None:
            now = time.monotonic()
            self._read_progress(watchdog, now)
            if self._gpus and now - sampled > GPU_SAMPLE_SECONDS:
                self._gpus.sample(process.pid for process in processes_of_run(self._folder))
                sampled = now
            if watchdog and (stuck := watchdog.stuck(now)):
                self._stop(handle, "watchdog", stuck)
                return
            if now - began > limit:
                self._stop(handle, "time-limit", f"still running after {limit:.0f} s")
                return
            time.sleep(POLL_SECONDS)

    @property
    def gpus_seen(self) -> int | None:
        """On how many of its GPUs the run was seen from outside."""
        return self._gpus.used if self._gpus else None

    def sweep(self) -> None:
        """End whatever the run left behind."""
        if not end_processes_of_run(self._folder, GRACE_SECONDS):
            self.stopped_by, self.stop_detail = "host", "a process of the run cannot be killed"

    def _read_progress(self, watchdog: Watchdog | None, now: float) -> None:
        for line in self._reader.new():
            self.last = line
            self._observe(line)
            self.memory.saw(line)
            if watchdog:
                watchdog.saw(line, now)

    def _stop(self, handle: Handle, by: StoppedBy, detail: str) -> None:
        gone = handle.stop(GRACE_SECONDS)
        self.stopped_by = by if gone else "host"
        self.stop_detail = detail if gone else f"{detail}, and the process cannot be killed"
