"""Lets a command outlive its terminal: when that is closed, what the command says goes to a log from then on."""

import errno
import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

_OUT, _ERR = 1, 2


class Terminal:
    """The terminal of a command, until it is closed: then the log takes its place, and `farewell` is its first line.

    `on_leaving` is called at that moment, maybe by a signal handler.
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
        """Return whether something is shown on it."""
        return bool(self._shown_on)

    def is_closed(self) -> bool:
        """Return whether it was there and was closed; the log is in its place then."""
        with self._lock:
            if not self._shown_on:
                return self._left
            if os.isatty(self._shown_on[0]):
                return False
            self._leave()
            return True

    def streams(self) -> dict[int, TextIO]:
        """Return streams in the place of the standard ones that are shown on it: nothing said is lost with it."""
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
    """Say what is said inside to the terminal, and to its log once it is closed."""
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
        """Write to the terminal; it may be closed before a signal says so, and to a job of a shell none may."""
        try:
            return super().write(content)
        except OSError as error:
            if error.errno != errno.EIO or not self._terminal.is_closed():
                raise
        return super().write(content)


def _opened(log: Path) -> int:
    """Return a descriptor of the log; of nothing, where it cannot be written or somebody put anything else there."""
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
