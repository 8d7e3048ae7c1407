"""Waits for a Docker engine that does not answer, while a job is started and while it runs."""

import time
from collections.abc import Callable

from harness.environments.executors.job import EngineSilent, Executor, Handle, Job
from harness.host.engine import AGAIN_SECONDS, WAIT_SECONDS, WAITING
from harness.run.watch.watchdog import Watchdog

# Called with a line of text on what the run waits for.
Say = Callable[[str], object]


class EngineWatch:
    """Starts jobs, and says so while the Docker engine does not answer."""

    def __init__(self, executor: Executor, say: Say) -> None:
        self._executor = executor
        self._say = say
        self._silent = 0.0

    def start(self, job: Job) -> Handle:
        """Start a process; wait for a Docker engine that does not answer.

        Raises:
            JobLost: when the process cannot be started, or the engine has not answered for too long.
            OSError, ValueError: when the process cannot be started.
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
        """Say when the engine stops answering and when it answers again.

        The silence is forgiven in the watchdog, because a process that writes to the engine has waited for that time.
        """
        if handle.unanswered:
            if not self._silent:
                self._say(WAITING)
            self._silent = handle.silent_seconds
        elif self._silent:
            self._say(f"the Docker engine answers again after {self._silent:.0f} s, and the container runs on")
            if watchdog:
                watchdog.discount_unwatched(self._silent)
            self._silent = 0.0
