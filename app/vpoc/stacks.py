"""The stacks of all threads of this process, written from inside: neither ptrace nor a right is needed.

A thread writes them at SIGUSR1, and when there was no sign of progress for a minute. It takes the interpreter's lock
first: who reads stacks while they change can end a healthy process, as faulthandler's own timer and handler of signals
do (https://github.com/python/cpython/issues/140815, https://github.com/python/cpython/issues/116008). Where a call
holds that lock for ever nothing changes either, and SIGUSR2 has them written without it, in plain C. Standard library
only.
"""

import contextlib
import faulthandler
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

SIGNAL, WITHOUT_LOCK = signal.SIGUSR1, signal.SIGUSR2
QUIET_S = 60.0

_descriptor = -1
_path: Path | None = None
_writer: "_Writer | None" = None
_quiet_since: float | None = None


def listen(path: Path) -> None:
    """From now on write stacks to `path` at SIGUSR1; what it holds of an earlier process goes. In the main thread.

    Raises:
        OSError: when the file cannot be made.
    """
    finished()
    _append_to(path, os.O_TRUNC)
    _answer()


def _answer() -> None:
    global _writer  # noqa: PLW0603
    if _writer is None:
        _writer = _Writer()
        _writer.start()
    # Otherwise it would not see that its handler is gone where somebody has set another meanwhile.
    faulthandler.unregister(WITHOUT_LOCK)
    faulthandler.register(WITHOUT_LOCK, _descriptor, all_threads=True, chain=False)
    signal.set_wakeup_fd(_writer.bell, warn_on_full_buffer=False)
    signal.signal(SIGNAL, _nothing)
    # A system call that it interrupts continues.
    signal.siginterrupt(SIGNAL, False)


def progressed() -> None:
    """A sign of progress: stacks are written a minute after the last one, and every minute then."""
    global _quiet_since  # noqa: PLW0603
    if _writer is not None:
        started = _quiet_since is None
        _quiet_since = time.monotonic()
        if started:
            _writer.ring()


def finished() -> None:
    """No more signs of progress are to come. SIGUSR1 is still answered."""
    global _quiet_since  # noqa: PLW0603
    _quiet_since = None


def _nothing(_signum: int, _frame: Any) -> None:
    """The signal is written where `set_wakeup_fd` says only if there is a handler."""


class _Writer(Thread):
    """Writes the stacks when it is asked to by a signal, and for every minute without progress."""

    def __init__(self) -> None:
        super().__init__(name="stacks", daemon=True)
        self._ear, self.bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """Have it look at the time again."""
        os.write(self.bell, b"\0")

    def run(self) -> None:
        while True:
            since = _quiet_since
            left = None if since is None else max(0.0, since + QUIET_S - time.monotonic())
            heard = os.read(self._ear, 1 << 12) if select.select([self._ear], [], [], left)[0] else b""
            if SIGNAL in heard:
                self._write("")
            elif not heard and since is not None and since == _quiet_since:
                self._write(f"No progress for {QUIET_S:g} s\n")
                self._go_on(since)

    def _write(self, why: str) -> None:
        # A full disk ends no training because of this.
        with contextlib.suppress(OSError):
            os.write(_descriptor, why.encode())
            faulthandler.dump_traceback(_descriptor, all_threads=True)

    def _go_on(self, since: float) -> None:
        global _quiet_since  # noqa: PLW0603
        if _quiet_since == since:
            _quiet_since = time.monotonic()


@contextmanager
def in_workers() -> Iterator[Callable[[int], None] | None]:
    """Around the start of worker processes: what each has to call first, with any number, to write to the same file.

    A new process has none of its parent's handlers; until it has its own, the signal waits.
    """
    if _path is None:
        yield None
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL, WITHOUT_LOCK})
    try:
        yield partial(_listen_in_worker, _path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen_in_worker(path: Path, _number: int) -> None:
    _append_to(path, 0)
    _answer()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL, WITHOUT_LOCK})


def _forget() -> None:
    """A forked process has none of its parent's threads; what it heard it would tell its parent's."""
    global _writer, _quiet_since  # noqa: PLW0603
    _writer = _quiet_since = None


os.register_at_fork(after_in_child=_forget)


def _append_to(path: Path, flags: int) -> None:
    global _descriptor, _path  # noqa: PLW0603 - faulthandler needs the descriptor to stay open
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
    _path = path
    if _descriptor < 0:
        _descriptor = opened
    else:
        # Whoever writes meanwhile writes to one or to the other.
        os.dup2(opened, _descriptor, inheritable=False)
        os.close(opened)
