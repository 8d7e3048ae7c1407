"""Processes that do a part of a campaign for the process that began them. Each has one job, and none outlives it.

A run is ended in order by a signal to the process that watches it, so runs side by side need a process each.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Protocol, cast

from harness.base.interrupts import GRACE_SECONDS, shielded

MOST_WORDS = 2000
# Time for a helper to end: it gives its own processes a grace period, and removes what is half made.
END_SECONDS = 2 * GRACE_SECONDS
Tell = Callable[[str, tuple[Any, ...]], None]


class HelperJob(Protocol):
    """A part of a campaign that can be pickled."""

    def carry_out(self, tell: Tell) -> None:
        """Do this part; messages passed to `tell` reach the process that began it."""


@dataclass(frozen=True)
class Message:
    """A message of a helper: a name and values."""

    name: str
    values: tuple[Any, ...]


@dataclass
class Helper:
    """A process that carries out a job."""

    process: subprocess.Popen[bytes]
    _stderr: IO[bytes]
    ended_with: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.process.stdout is None:
            raise AssertionError("it was started with a pipe")
        self.output = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdout.close()

    @classmethod
    def begin(cls, job: HelperJob) -> "Helper":
        """Start a process for a job.

        The process stays in this session, so that it is not mistaken for a leftover of a run, but gets a process group
        of its own, so that Ctrl-C reaches it only through this process. When this process ends, the helper's standard
        input closes.
        """
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the helper
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.campaign.helpers.helper_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,
        )
        # A helper that ends at once reports why on its standard error.
        with suppress(BrokenPipeError):
            if process.stdin:
                with Connection(os.dup(process.stdin.fileno()), readable=False) as given:
                    given.send(job)
        return cls(process, said)

    @property
    def stderr_tail(self) -> str:
        """The end of what the helper wrote to its standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-MOST_WORDS:].strip()

    def read(self) -> Message | None:
        """Wait for the helper's next message and return it; None if it sends no more."""
        try:
            # Unpickling is safe: the sender is a process of our own.
            message = Message(*self.output.recv())
        except (EOFError, OSError):
            return None
        if message.name in ("error", "interrupted", "done"):
            self.ended_with.append(message)
        return message

    def failure(self) -> str | None:
        """Wait for the helper to end and return why it failed; None if it did not."""
        while self.read():
            pass
        if self.process.wait() == 0:
            return None
        errors = [str(one.values[0]) for one in self.ended_with if one.name == "error"]
        return errors[0] if errors else self.stderr_tail or f"it ended with status {self.process.returncode}"

    def signal(self, number: int) -> None:
        """Send a signal to the helper if it still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        """Wait for the helper to end, and close its files."""
        with suppress(BrokenPipeError):
            if self.process.stdin:
                self.process.stdin.close()
        self.process.wait()
        self.output.close()
        self._stderr.close()

    def end(self) -> None:
        """End the helper if it still runs: in order with SIGTERM, or else with SIGKILL to its group.

        It must end in order because images are built outside its process group. A builder that goes on keeps its lock.
        """
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def listen(helpers: Sequence[Helper], heard: Callable[[int, Message], None]) -> None:
    """Pass on the messages of helpers, each with the helper's position in the list, until all have ended."""
    telling = {helper.output: (place, helper) for place, helper in enumerate(helpers)}
    while telling:
        for output in wait(telling):
            place, helper = telling[cast("Connection", output)]
            # An interruption in the middle of a message would garble the next one.
            with shielded():
                message = helper.read()
            if message:
                heard(place, message)
            else:
                del telling[helper.output]
