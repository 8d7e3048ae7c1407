"""Passes lines of several processes on to one output: each line whole, none lost."""

import contextlib
import math
import os
import select
from collections.abc import Callable
from dataclasses import dataclass

PIPE_BYTES = 1 << 16
"""Bytes that a Linux pipe holds."""
LONGEST_LINE = 1 << 20
"""Bytes; a longer line is passed on in parts of this size."""
MOST_WAITING = 1 << 22
"""Bytes; while this much waits to be written, no more is read."""


class Outlet:
    """An output of this process with the bytes that wait to be written to it; writing never blocks."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting = bytearray()
        self.closed = False

    def write(self) -> None:
        """Write some of the waiting bytes; call it when the output is ready."""
        try:
            # A pipe that is ready takes this much without blocking.
            written = os.write(self.descriptor, self.waiting[: select.PIPE_BUF])
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads the output any more, or the disk is full.
            self.closed = True
            self.waiting.clear()
            return
        del self.waiting[:written]


class Lines:
    """The output of a process from the pipe `descriptor`, passed on to `outlet` line by line, each after `prefix`.

    Once the outlet is closed the pipe is closed, too, so that the process gets the same error as without us.
    """

    def __init__(self, descriptor: int, outlet: Outlet, prefix: bytes) -> None:
        self.descriptor = descriptor
        self.outlet = outlet
        self.open = True
        self._prefix = prefix
        self._part = b""
        os.set_blocking(descriptor, False)

    @property
    def wanted(self) -> bool:
        """Return whether more should be read now."""
        return self.open and len(self.outlet.waiting) < MOST_WAITING

    def read(self) -> None:
        """Read what is there now, at most one block."""
        if self.outlet.closed:
            self.close()
        if not self.open:
            return
        try:
            block = os.read(self.descriptor, PIPE_BYTES)
        except BlockingIOError:
            return
        if not block:
            self.close()
            return
        *whole, self._part = (self._part + block).split(b"\n")
        for line in whole:
            self._pass_on(line)
        if len(self._part) > LONGEST_LINE:
            self._pass_on(self._part)
            self._part = b""

    def close(self) -> None:
        """Pass on the rest as a line, and stop reading."""
        if self.open:
            self.open = False
            os.close(self.descriptor)
            if self._part:
                self._pass_on(self._part)

    def _pass_on(self, line: bytes) -> None:
        if not self.outlet.closed:
            self.outlet.waiting += self._prefix + line + b"\n"


@dataclass(frozen=True)
class End:
    """The output to give a process: the descriptor of a pipe, closed here afterwards, or None to inherit ours."""

    given: int | None

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_: object) -> None:
        if self.given is not None:
            os.close(self.given)


class Passage:
    """Passes on what processes write to standard output and standard error, and writes lines of this process."""

    def __init__(self) -> None:
        out, err = Outlet(1), Outlet(2)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(1), os.fstat(2)):
                # If both go to one log, a line of one must not end up within a line of the other.
                out = err
        self._outlets = (out, err)
        self._lines: list[Lines] = []

    def ends(self, prefix: str, *, inherit_terminal: bool) -> tuple[End, End]:
        """Return the standard output and error for a process.

        They are the terminal itself if ours is one and `inherit_terminal` is set.
        """
        out, err = self._outlets
        return self._end(1, out, prefix, inherit_terminal), self._end(2, err, prefix, inherit_terminal)

    def _end(self, descriptor: int, outlet: Outlet, prefix: str, inherit_terminal: bool) -> End:
        if inherit_terminal and os.isatty(descriptor):
            return End(None)
        read, write = os.pipe()
        self._lines.append(Lines(read, outlet, prefix.encode()))
        return End(write)

    def say(self, line: str) -> None:
        """Write a line of this process to standard error, after everything that was written so far."""
        self._read_all()
        self._outlets[1].waiting += line.encode() + b"\n"

    def pump(self, wake: int, timeout: float | None) -> None:
        """Wait until there is something to read or to write, or `wake` is readable; then read and write.

        Waits at most `timeout` seconds; None: without a limit.
        """
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        reading = {each.descriptor: each for each in self._lines if each.wanted}
        writing = {each.descriptor: each for each in self._outlets if each.waiting}
        for descriptor in reading:
            poller.register(descriptor, select.POLLIN)
        for descriptor in writing:
            poller.register(descriptor, select.POLLOUT)
        for descriptor, _ in poller.poll(None if timeout is None else math.ceil(timeout * 1000)):
            if descriptor in reading:
                reading[descriptor].read()
            elif descriptor in writing:
                writing[descriptor].write()

    def finish(self, wake: int, enough: Callable[[], bool]) -> None:
        """Pass on everything that was written; stop early when `wake` is readable and `enough` returns true."""
        self._read_all()
        for lines in self._lines:
            lines.close()
        while any(outlet.waiting for outlet in self._outlets) and not enough():
            self.pump(wake, None)

    def _read_all(self) -> None:
        for lines in self._lines:
            # Read at most what a full pipe holds: a pipe that is written to all the time would never be empty.
            lines.read()
