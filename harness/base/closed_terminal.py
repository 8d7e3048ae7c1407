"""Lets a command outlive its terminal: once the terminal is closed, the command's output goes to a log."""

import errno
import io
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_OUT, _ERR = 1, 2
# Control sequences of a terminal: colours, and movements of the cursor.
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


class Terminal:
    """The terminal of a command. Once it is closed, a log takes its place, with `farewell` as its first line.

    `on_leaving`: called at that moment, perhaps by a signal handler.
    """

    def __init__(self, log: Path, farewell: str, on_leaving: Callable[[], object] = lambda: None) -> None:
        self._log = log
        self._farewell = farewell
        self._on_leaving = on_leaving
        self._lock = threading.RLock()
        self._shown_on = tuple(number for number in (_OUT, _ERR) if os.isatty(number))
        self._asks_on = os.isatty(0)
        self._left = False

    @property
    def is_there(self) -> bool:
        """True if an output of the command is shown on the terminal."""
        with self._lock:
            return bool(self._shown_on)

    def is_closed(self) -> bool:
        """Return whether the command had a terminal that was closed; if so, the log is in its place."""
        with self._lock:
            if not self._shown_on:
                return self._left
            if os.isatty(self._shown_on[0]):
                return False
            self._leave()
            return True

    def streams(self) -> dict[int, TextIO]:
        """Return streams for the outputs that are shown on the terminal; they lose nothing when it is closed."""
        return {number: _text(_Shown(number, self)) for number in self._shown_on}

    def _leave(self) -> None:
        shown_on, self._shown_on, self._left = self._shown_on, (), True
        with suppress(OSError):
            self._log.parent.mkdir(parents=True, exist_ok=True)
        log = _opened(self._log)
        for number in shown_on:
            os.dup2(log, number)
        with suppress(OSError):
            os.write(log, f"{self._farewell}\n".encode())
        os.close(log)
        if self._asks_on:
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        self._on_leaving()


@contextmanager
def outliving(terminal: Terminal) -> Iterator[None]:
    """Send the output of the block to the terminal, and to the log once the terminal is closed."""
    before = {_OUT: sys.stdout, _ERR: sys.stderr}
    made = terminal.streams()
    sys.stdout, sys.stderr = made.get(_OUT, sys.stdout), made.get(_ERR, sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before[_OUT], before[_ERR]
        for stream in made.values():
            stream.flush()


class _Shown(io.FileIO):
    def __init__(self, number: int, terminal: Terminal) -> None:
        super().__init__(number, "w", closefd=False)
        self._terminal = terminal

    def write(self, content: "bytes | bytearray | memoryview") -> int | None:  # type: ignore[override]
        """Write to the terminal. It may be closed before a signal says so; a job of a shell may get none at all."""
        try:
            if self._terminal.is_there:
                return super().write(content)
        except OSError as error:
            if error.errno != errno.EIO or not self._terminal.is_closed():
                raise
        super().write(_without_controls(bytes(content)))
        return len(content)


def _without_controls(content: bytes) -> bytes:
    """Return for the log what was made for the terminal just before it was closed."""
    plain = _CONTROL_SEQUENCE.sub(b"", content)
    return plain if plain == content or plain.endswith(b"\n") else plain + b"\n"


def _opened(log: Path) -> int:
    """Return a descriptor of the log; of /dev/null if the log cannot be written or is not a regular file."""
    with suppress(OSError):
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
    return os.open(os.devnull, os.O_WRONLY)


def _text(raw: io.FileIO) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=sys.stderr.encoding, errors=sys.stderr.errors, line_buffering=True
    )
