"""Waits for a Docker engine that does not answer: as a job is to be started, and while it runs."""

import time
from collections.abc import Callable

from harness.environments.executors.job import EngineSilent, Executor, Handle, Job
from harness.host.engine import AGAIN_SECONDS, WAIT_SECONDS, WAITING
from harness.run.watch.watchdog import Watchdog

# Takes a line on what is waited for.
Say = Callable[[str], object]


class EngineWatch:
    """Starts jobs, and says when what they run on is waited for."""

    def __init__(self, executor: Executor, say: Say) -> None:
        self._executor = executor
        self._say = say
        self._silent = 0.0

    def start(self, job: Job) -> Handle:
        """Start a process; an engine that does not answer is waited for.

        Raises:
            JobLost: when it cannot be started, or nothing has answered for too long.
            OSError, ValueError: when it cannot be started.
        """
        self._silent = 0.0
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

    def note_silence(self, handle: Handle, watchdog: Watchdog | None) -> None:
        """Say that an engine does not answer, and that it answers again: what writes to it has waited so long."""
        if handle.unanswered:
            if not self._silent:
                self._say(WAITING)
            self._silent = handle.silent_seconds
        elif self._silent:
            self._say(f"the Docker engine answers again after {self._silent:.0f} s, and the container runs on")
            if watchdog:
                watchdog.forgive(self._silent)
            self._silent = 0.0
