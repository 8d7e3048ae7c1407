"""Lines of several processes on one output: each whole, none lost."""

import contextlib
import math
import os
import select
from collections.abc import Callable
from dataclasses import dataclass

PIPE_BYTES = 1 << 16
"""Bytes; what a pipe of Linux holds."""
LONGEST_LINE = 1 << 20
"""Bytes; a longer line is passed on in parts of this size."""
MOST_WAITING = 1 << 22
"""Bytes; no more is read while so much waits to be written."""


class Outlet:
    """An output of this process and what waits to be written to it, never in a way that would block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting = bytearray()
        self.closed = False

    def write(self) -> None:
        """Write some of what waits; call it when the output is ready."""
        try:
            # So much fits into a pipe that is ready.
            written = os.write(self.descriptor, self.waiting[: select.PIPE_BUF])
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads it any more, or the disk is full.
            self.closed = True
            self.waiting.clear()
            return
        del self.waiting[:written]


class Lines:
    """The output of a process from the pipe `descriptor`, passed on to `outlet` line by line, each after `prefix`.

    Once the outlet is closed the pipe is closed too, so that the process sees what it would see without us.
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
        """True when more should be read now."""
        return self.open and len(self.outlet.waiting) < MOST_WAITING

    def read(self) -> None:
        """Take what is there now, at most one block."""
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
        """Pass on what is left, as a line, and read no more."""
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
    """The output to give a process: the descriptor of a pipe, closed here afterwards, or None for ours."""

    given: int | None

    def __enter__(self) -> "End":
        return self

    def __exit__(self, *_: object) -> None:
        if self.given is not None:
            os.close(self.given)


class Passage:
    """Passes on what processes write to standard output and standard error, and says something itself."""

    def __init__(self) -> None:
        out, err = Outlet(1), Outlet(2)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(1), os.fstat(2)):
                # In a log of both, a line of one must not end up within a line of the other.
                out = err
        self._outlets = (out, err)
        self._lines: list[Lines] = []

    def ends(self, prefix: str, *, inherit_terminal: bool) -> tuple[End, End]:
        """Standard output and standard error for a process; the terminal itself where that is ours, if so wanted."""
        out, err = self._outlets
        return self._end(1, out, prefix, inherit_terminal), self._end(2, err, prefix, inherit_terminal)

    def _end(self, descriptor: int, outlet: Outlet, prefix: str, inherit_terminal: bool) -> End:
        if inherit_terminal and os.isatty(descriptor):
            return End(None)
        read, write = os.pipe()
        self._lines.append(Lines(read, outlet, prefix.encode()))
        return End(write)

    def say(self, line: str) -> None:
        """A line of our own on standard error, after all that has been written so far."""
        self._read_all()
        self._outlets[1].waiting += line.encode() + b"\n"

    def pump(self, wake: int, timeout: float | None) -> None:
        """Wait until there is something to read or to write, or `wake` is readable, and read and write it.

        At most `timeout` seconds; None: for as long as it takes.
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
        """Pass on all that was written; stops when `wake` is readable and it is `enough`."""
        self._read_all()
        for lines in self._lines:
            lines.close()
        while any(outlet.waiting for outlet in self._outlets) and not enough():
            self.pump(wake, None)

    def _read_all(self) -> None:
        for lines in self._lines:
            # What a full pipe holds, and no more: one that is written to all the time would never be empty.
            lines.read()
