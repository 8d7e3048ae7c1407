"""Runs the processes of one run and watches each to its end."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.contracts import Phase, Progress
from harness.executors import Executor, Exit, Handle, Job
from harness.host.gpu_memory import GpuWatch
from harness.outcome import StoppedBy
from harness.processes import end_processes_of_run
from harness.progress import ProgressReader
from harness.watchdog import Watchdog

POLL_SECONDS = 0.1
GPU_SAMPLE_SECONDS = 1.0
# Time the app has to end its loader workers and to write its last lines.
GRACE_SECONDS = 10.0

Observer = Callable[[Progress], None]


class Watch:
    """The eye on one run. After `stopped_by` is set nothing more is to be started."""

    def __init__(self, run_id: str, folder: Path, executor: Executor, observe: Observer) -> None:
        self._run_id = run_id
        self._folder = folder
        self._executor = executor
        self._observe = observe
        self._reader = ProgressReader(folder)
        self.gpus = GpuWatch()
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
    ) -> Exit | None:
        """Run one process for `limit` seconds at most; None when it had to be stopped.

        `phase_limits` are the watchdog's; without them the process is not expected to tell its progress.
        """
        began = time.monotonic()
        handle = self._executor.start(Job(self._run_id, command, variables, self._folder, self._folder / log))
        watchdog = Watchdog(began, phase_limits) if phase_limits else None
        try:
            exit_ = self._until_end(handle, watchdog, began, limit)
        except BaseException:
            handle.stop(GRACE_SECONDS)
            raise
        self._read_progress(watchdog, time.monotonic())
        self.sweep()
        return exit_

    def _until_end(self, handle: Handle, watchdog: Watchdog | None, began: float, limit: float) -> Exit | None:
        sampled = 0.0
        while (exit_ := handle.poll()) is None:
            now = time.monotonic()
            self._read_progress(watchdog, now)
            if now - sampled > GPU_SAMPLE_SECONDS:
                self.gpus.sample()
                sampled = now
            if watchdog and (stuck := watchdog.stuck(now)):
                self._stop(handle, "watchdog", stuck)
                return None
            if now - began > limit:
                self._stop(handle, "time-limit", f"still running after {limit:.0f} s")
                return None
            time.sleep(POLL_SECONDS)
        return exit_

    def sweep(self) -> None:
        """End whatever the run left behind."""
        if not end_processes_of_run(self._run_id, GRACE_SECONDS):
            self.stopped_by, self.stop_detail = "host", "a process of the run cannot be killed"

    def _read_progress(self, watchdog: Watchdog | None, now: float) -> None:
        for line in self._reader.new():
            self.last = line
            self._observe(line)
            if watchdog:
                watchdog.saw(line, now)

    def _stop(self, handle: Handle, by: StoppedBy, detail: str) -> None:
        gone = handle.stop(GRACE_SECONDS)
        self.stopped_by = by if gone else "host"
        self.stop_detail = detail if gone else f"{detail}, and the process cannot be killed"
