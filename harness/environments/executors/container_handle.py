"""A container that runs a job: its state is polled, its output copied, and it can be stopped."""

import contextlib
import math
import os
import signal
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, NotFound
from requests.exceptions import Timeout

from harness.base.files.storage import open_regular
from harness.environments.executors.bounded_log import MAY_LACK_SOME, SLACK_BYTES, BoundedLog
from harness.environments.executors.container import LOG_FILE_BYTES
from harness.environments.executors.job import EngineSilent, Exit, JobLost
from harness.host.engine import WAIT_SECONDS, Engine
from harness.host.engine_errors import ENGINE_ERRORS, GONE

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG_SECONDS = 10
# Below this size no file of the engine's log is full: it writes each line as JSON, at most some 80 bytes for one.
NEVER_ROTATED_BYTES = LOG_FILE_BYTES // 100
COMPARED_BYTES = 1 << 16
# Most lines asked of the engine at the end. It sends some 10,000 lines a second, and may keep 800,000 empty ones.
LAST_LINES = 50_000
ASK_SECONDS = 1.0
BY_SIGNAL, LAST_SIGNAL = 128, 64
# Signals of a crash. A program may turn the TERM of an engine that shuts down into any other exit.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
ENDED_BY_ENGINE = "the Docker engine was ended or restarted, and ended the container"
# The engine's answer for a container that ended while neither the engine nor its containerd was there.
UNKNOWN = Exit(255)
ENDED_UNSEEN = "the Docker engine was restarted, and does not know how the container ended meanwhile"


class ContainerHandle:
    """A container of a run. Its output is copied to `log`. When it has ended it is removed, and `inspected` is kept.

    If the engine does not answer, the handle waits: the container may run on meanwhile, and is found again by its id.
    """

    def __init__(self, engine: Engine, container: str, log: Path) -> None:
        self._engine = engine
        self._api = engine.client.api
        self._id = container
        self._exit: Exit | None = None
        self._asked = -math.inf
        self.inspected: Mapping[str, Any] | None = None
        self._log = log
        with open_regular(log, adding=True) as file:
            self._begins = file.tell()
        self._bounded = BoundedLog(log, self._begins)
        self._output: Any = None
        self._copied_bytes = 0
        self._copied = self._overdue = self._missed = self._broke_off = False
        self._silent_since: float | None = None
        self._silent_before = 0.0
        self._engine_was_gone = False
        self._copying = self._follow()

    @property
    def pid(self) -> int | None:
        """The host's number of the container's first process, the init process that Docker adds; None if unknown."""
        pid = self.inspected["State"]["Pid"] if self.inspected else 0
        return int(pid) or None

    @property
    def unanswered(self) -> bool:
        """Return whether the engine does not answer at the moment."""
        return self._silent_since is not None

    @property
    def silent_seconds(self) -> float:
        """The seconds, in total, for which the engine has not answered so far."""
        since = self._silent_since
        return self._silent_before + (time.monotonic() - since if since is not None else 0.0)

    def poll(self) -> Exit | None:
        """Return how the process ended; None while it runs, or while the engine is silent for less than two minutes.

        Raises:
            JobLost: when the engine is silent for longer, its restart ended the container, or somebody removed the
                container.
        """
        if self._exit is None:
            # Check this before asking: the engine ends the stream of a container before it says that the container
            # ended.
            follows = self._copying.is_alive()
            # While its output arrives the container runs, and asking the engine is slow.
            if (follows or self.unanswered) and time.monotonic() - self._asked < ASK_SECONDS:
                return None
            self._asked = time.monotonic()
            told = self._ask()
            if told is None:
                return None
            state = told["State"]
            if state["Status"] not in ("exited", "dead"):
                self._engine_was_gone = False
                if not follows:
                    self._broke_off = True
                    self._follow_again()
                return None
            if why := self._lost_with_engine(_exit_of(state)):
                raise JobLost(why)
            self._finish_log()
            self._exit = _exit_of(state)
            self._remove()
        return self._exit

    def stop(self, grace: float) -> bool:
        """End the container with TERM and, after `grace` seconds, KILL; return False if it still runs."""
        if self._exit is not None:
            return True
        try:
            # A user who presses Ctrl-C should not wait for an engine that is known to be silent.
            api = self._engine.api_with_timeout if self.unanswered else self._api
            api.stop(self._id, timeout=round(grace))
            told = self._inspect()
        except NotFound:
            return True
        except APIError:
            return False
        except (JobLost, *ENGINE_ERRORS):
            # Processes of the container that are left are ended later, by their mark.
            return True
        if told["State"]["Running"]:
            return False
        with contextlib.suppress(JobLost):
            self._finish_log()
        self._exit = _exit_of(told["State"])
        self._remove()
        return True

    def _ask(self) -> Any:
        """Return the engine's answer about the container; None while the engine does not answer."""
        try:
            told = self._inspect()
        except EngineSilent as silent:
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
            # An engine that merely took too long to answer was not restarted.
            self._engine_was_gone |= not isinstance(silent.__cause__, Timeout)
            if now - self._silent_since >= WAIT_SECONDS:
                raise
            return None
        self._silent_before, self._silent_since = self.silent_seconds, None
        return told

    def _inspect(self) -> Any:
        try:
            self.inspected = self._engine.api_with_timeout.inspect_container(self._id)
        except NotFound:
            raise JobLost("the container was removed from outside") from None
        except ENGINE_ERRORS as error:
            raise EngineSilent(GONE) from error
        return self.inspected

    def _lost_with_engine(self, exit_: Exit) -> str | None:
        """Return how a restart or end of the engine ended the container, or that its end is unknown.

        None if the container ended by itself.
        """
        if exit_.ok or exit_.out_of_memory or -exit_.code in CRASHES:
            return None
        if self._engine.facts.get("LiveRestoreEnabled"):
            return ENDED_UNSEEN if exit_ == UNKNOWN and not self._engine_saw_it_end() else None
        away = self._engine_was_gone or not self._engine.answers() or not self._engine_saw_it_end()
        return ENDED_BY_ENGINE if away else None

    def _engine_saw_it_end(self) -> bool:
        """Return whether the current engine saw the container end; an engine that was started since has no such event.

        An engine can be restarted between two requests, without any request that fails.
        """
        wanted = {"container": self._id, "event": "die"}
        try:
            # The engine answers at the end of this second.
            until = int(time.time()) + 1
            return bool(list(self._engine.api_with_timeout.events(since=0, until=until, filters=wanted, decode=True)))
        except ENGINE_ERRORS:
            return False

    def _follow(self, already: int = 0) -> threading.Thread:
        """Start to copy the output to the log, without its first `already` bytes, which are there already."""
        copying = threading.Thread(target=self._copy_output, args=(already,), daemon=True)
        copying.start()
        return copying

    def _follow_again(self) -> None:
        """Continue to copy the output, because the stream also ends without an error if the engine is restarted."""
        self._copied = False
        # If the engine may have dropped the beginning, missing output is copied at the end.
        self._missed |= self._copied_bytes >= NEVER_ROTATED_BYTES
        self._copying = self._follow(self._copied_bytes)

    def _copy_output(self, already: int) -> None:
        trimmed = 0
        failures = (*ENGINE_ERRORS, OSError, ValueError, struct.error)
        with contextlib.suppress(*failures), open_regular(self._log, adding=True) as file:
            only_new = {"tail": 0} if self._missed else {}
            self._output = self._api.logs(self._id, stream=True, follow=True, **only_new)
            for said in self._output:
                if self._overdue:
                    return
                chunk = said if self._missed else said[already:]
                already = max(0, already - len(said))
                file.write(chunk)
                file.flush()
                self._copied_bytes += len(chunk)
                if self._copied_bytes - trimmed >= SLACK_BYTES:
                    self._bounded.trim()
                    trimmed = self._copied_bytes
            self._copied = True

    def _finish_log(self) -> None:
        """Complete the log within its bounds before the container is removed, and note if output may be missing.

        The engine drops unread output of a container that prints fast, and then the end of the output never arrives
        here.
        """
        self._copying.join(LOG_SECONDS)
        followed = self._copied_bytes
        if followed < NEVER_ROTATED_BYTES and not self._copying.is_alive():
            self._follow_again()
            self._copying.join(LOG_SECONDS)
            self._broke_off |= self._copied and self._copied_bytes > followed
        self._bring_to_its_bounds()
        if self._broke_off:
            with contextlib.suppress(OSError), open_regular(self._log, adding=True) as file:
                file.write(f"\n{MAY_LACK_SOME}\n".encode())

    def _bring_to_its_bounds(self) -> None:
        """Cut out the middle of the copied output if it is complete, or else of the output that the engine keeps."""
        try:
            if self._missed or not (self._copied and self._ends_as_the_engine_says()):
                self._stop_copying()
                self._copy_what_the_engine_keeps()
                return
        except ENGINE_ERRORS:
            raise JobLost("the Docker engine does not give the container's output") from None
        except OSError:
            # A full disk is reported when the record is written.
            return
        self._bounded.finish()

    def _ends_as_the_engine_says(self) -> bool:
        if self._copied_bytes < NEVER_ROTATED_BYTES:
            return True
        last = self._api.logs(self._id, tail=1)
        with self._log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - len(last), 0))
            return bool(file.read() == last)

    def _stop_copying(self) -> None:
        self._overdue = True
        if self._copying.is_alive():
            with contextlib.suppress(*ENGINE_ERRORS, OSError, ValueError):
                self._output.close()
            self._copying.join(LOG_SECONDS)

    def _copy_what_the_engine_keeps(self) -> None:
        """Replace the copied output, or the part after its beginning, by the end of what the engine keeps."""
        output = iter(self._api.logs(self._id, stream=True, tail=LAST_LINES))
        lines, first = 0, b""
        for chunk in output:
            lines += 1
            first += chunk
            if len(first) >= COMPARED_BYTES:
                break
        with self._log.open("r+b") as file:
            file.seek(self._begins)
            followed = file.read(len(first))
            # True if the engine still has the beginning, or if only the engine has it.
            whole = first.startswith(followed)
            there = len(followed) if whole else self._copied_bytes
            seam = min(self._begins + there, self._bounded.head_ends)
            file.truncate(seam)
            file.seek(seam)
            kept = file.write(first[len(followed) if whole else 0 :])
            for chunk in output:
                lines += 1
                kept += file.write(chunk)
        if whole and lines < LAST_LINES:
            self._bounded.finish()
        else:
            self._bounded.finish_after_gap(seam, max(self._copied_bytes, kept))

    def _remove(self) -> None:
        with contextlib.suppress(*ENGINE_ERRORS):
            self._api.remove_container(self._id, force=True, v=True)


def _exit_of(state: Any) -> Exit:
    code = int(state["ExitCode"])
    # The init process reports a signal n as exit code 128 + n.
    signalled = BY_SIGNAL < code <= BY_SIGNAL + LAST_SIGNAL
    return Exit(BY_SIGNAL - code if signalled else code, out_of_memory=bool(state["OOMKilled"]))
