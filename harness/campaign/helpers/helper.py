"""Processes that do a part of a campaign for the one that began it: each has one job, and none outlives its campaign.

A run ends in order by a signal to the process that watches it, so that runs side by side need a process each.
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
# It gives what it runs the grace, and removes what is half made.
END_SECONDS = 2 * GRACE_SECONDS
Tell = Callable[[str, tuple[Any, ...]], None]


class HelperJob(Protocol):
    """A part of a campaign, which can be pickled."""

    def carry_out(self, tell: Tell) -> None:
        """Do it; what it tells reaches the process that began it."""


@dataclass(frozen=True)
class Message:
    """A message of a helper: a name and values."""

    name: str
    values: tuple[Any, ...]


@dataclass
class Helper:
    """A process that carries out a job. `words` is what it wrote to its standard error."""

    process: subprocess.Popen[bytes]
    _said: IO[bytes]
    ended_with: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.process.stdout is None:
            raise AssertionError("it was started with a pipe")
        self.output = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdout.close()

    @classmethod
    def begin(cls, job: HelperJob) -> "Helper":
        """Start a process for a job.

        It is in this session, so that it is not taken for what a run left behind, but in a group of its own: Ctrl-C
        reaches it through this process alone. Where this process is gone, its standard input says so.
        """
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the helper
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.campaign.helpers.helper_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,
        )
        # One that ends at once says why on its standard error.
        with suppress(BrokenPipeError):
            if process.stdin:
                with Connection(os.dup(process.stdin.fileno()), readable=False) as given:
                    given.send(job)
        return cls(process, said)

    @property
    def words(self) -> str:
        """The last lines that it wrote."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-MOST_WORDS:].strip()

    def read(self) -> Message | None:
        """Return its next message, waiting for it; None where it tells no more."""
        try:
            # Of a process of our own.
            message = Message(*self.output.recv())
        except (EOFError, OSError):
            return None
        if message.name in ("error", "interrupted", "done"):
            self.ended_with.append(message)
        return message

    def failure(self) -> str | None:
        """Wait for its end; return why it failed, None where it did not."""
        while self.read():
            pass
        if self.process.wait() == 0:
            return None
        errors = [str(one.values[0]) for one in self.ended_with if one.name == "error"]
        return errors[0] if errors else self.words or f"it ended with status {self.process.returncode}"

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        """Wait for its end, and close its files."""
        with suppress(BrokenPipeError):
            if self.process.stdin:
                self.process.stdin.close()
        self.process.wait()
        self.output.close()
        self._said.close()

    def end(self) -> None:
        """End it, where it still runs: in order, as an image is built outside its group; else at once, with its group.

        What a builder goes on with stays locked.
        """
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def listen(helpers: Sequence[Helper], heard: Callable[[int, Message], None]) -> None:
    """Pass on what helpers tell, each with its place in the list, until all have ended."""
    telling = {helper.output: (place, helper) for place, helper in enumerate(helpers)}
    while telling:
        for output in wait(telling):
            place, helper = telling[cast("Connection", output)]
            # What was read and not kept would garble what follows.
            with shielded():
                message = helper.read()
            if message:
                heard(place, message)
            else:
                del telling[helper.output]
