"""Processes that do a part of a campaign for the one that began it: each has one job, and none outlives its campaign.

A run ends in order by a signal to the process that watches it, so that runs side by side need a process each.
"""

import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from harness.base.interrupts import GRACE_SECONDS, shielded

LENGTH = struct.Struct("!Q")
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
    _read: bytes = b""
    ended_with: list[Message] = field(default_factory=list)

    @classmethod
    def begin(cls, job: HelperJob) -> "Helper":
        """Start a process for a job.

        It is in this session, so that it is not taken for what a run left behind, but in a group of its own: Ctrl-C
        reaches it through this process alone. Where this process is gone, its standard input says so.
        """
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the helper
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.campaign.helper_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,
        )
        content = pickle.dumps(job)
        # One that ends at once says why on its standard error.
        with suppress(BrokenPipeError):
            if process.stdin:
                process.stdin.write(LENGTH.pack(len(content)) + content)
                process.stdin.flush()
        return cls(process, said)

    @property
    def output(self) -> IO[bytes]:
        """The pipe that it tells through."""
        if self.process.stdout is None:
            raise AssertionError("it was started with a pipe")
        return self.process.stdout

    @property
    def words(self) -> str:
        """The last lines that it wrote."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-MOST_WORDS:].strip()

    def read(self) -> tuple[list[Message], bool]:
        """Return what it told since, waiting for something, and whether it may tell more."""
        new = os.read(self.output.fileno(), 1 << 16)
        self._read += new
        new_messages = list(self._whole())
        self.ended_with += [one for one in new_messages if one.name in ("error", "interrupted", "done")]
        return new_messages, bool(new)

    def failure(self) -> str | None:
        """Wait for its end; return why it failed, None where it did not."""
        more = True
        while more:
            _, more = self.read()
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

    def _whole(self) -> Iterator[Message]:
        while len(self._read) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._read)
            end = LENGTH.size + length
            if len(self._read) < end:
                return
            # Of a process of our own.
            yield Message(*pickle.loads(self._read[LENGTH.size : end]))  # noqa: S301
            self._read = self._read[end:]


def listen(helpers: Sequence[Helper], heard: Callable[[int, Message], None]) -> None:
    """Pass on what helpers tell, each with its place in the list, until all have ended."""
    with selectors.DefaultSelector() as selector:
        for place, helper in enumerate(helpers):
            selector.register(helper.output, selectors.EVENT_READ, place)
        while selector.get_map():
            for key, _ in selector.select():
                # What was read and not kept would garble what follows.
                with shielded():
                    messages, more = helpers[key.data].read()
                for one in messages:
                    heard(key.data, one)
                if not more:
                    selector.unregister(key.fileobj)
