"""Writes the stacks of all threads of this process from inside, which needs neither ptrace nor a privilege.

A thread writes them at SIGUSR1, and after a minute without a sign of progress. The thread takes the interpreter's lock
first: reading stacks while they change can crash a healthy process, as faulthandler's own timer and signal handlers do
(https://github.com/python/cpython/issues/140815, https://github.com/python/cpython/issues/116008). If a call holds that
lock for ever, no stack changes either: SIGUSR2 then has them written without the lock, in plain C. Standard library
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

from vpoc.files import open_in_place

SIGNAL, WITHOUT_LOCK = signal.SIGUSR1, signal.SIGUSR2
QUIET_S = 60.0

_descriptor = -1
_path: Path | None = None
_writer: "_Writer | None" = None
_quiet_since: float | None = None


def listen(path: Path) -> None:
    """Write stacks to `path` at SIGUSR1 from now on, after emptying the file. Call this in the main thread.

    Raises:
        OSError: when the file cannot be created.
    """
    finished()
    _append_to(path, os.O_TRUNC)
    _install_handlers()


def _install_handlers() -> None:
    global _writer  # noqa: PLW0603
    if _writer is None:
        _writer = _Writer()
        _writer.start()
    # Unregister first: faulthandler does not notice when another handler has replaced its own meanwhile.
    faulthandler.unregister(WITHOUT_LOCK)
    faulthandler.register(WITHOUT_LOCK, _descriptor, all_threads=True, chain=False)
    signal.set_wakeup_fd(_writer.bell, warn_on_full_buffer=False)
    signal.signal(SIGNAL, _nothing)
    # Let system calls continue that this signal interrupts.
    signal.siginterrupt(SIGNAL, False)


def progressed() -> None:
    """Report progress: stacks are written a minute after the last report, and every minute from then on."""
    global _quiet_since  # noqa: PLW0603
    if _writer is not None:
        started = _quiet_since is None
        _quiet_since = time.monotonic()
        if started:
            _writer.ring()


def finished() -> None:
    """Expect no more progress reports. SIGUSR1 is still answered."""
    global _quiet_since  # noqa: PLW0603
    _quiet_since = None


def _nothing(_signum: int, _frame: Any) -> None:
    """Do nothing; `set_wakeup_fd` takes effect only for signals that have a Python handler."""


class _Writer(Thread):
    """Writes the stacks when a signal asks for them, and for every minute without progress."""

    def __init__(self) -> None:
        super().__init__(name="stacks", daemon=True)
        self._ear, self.bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self) -> None:
        """Make the thread check the time again."""
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
        # A full disk must not end the training because of a stack.
        with contextlib.suppress(OSError):
            os.write(_descriptor, why.encode())
            faulthandler.dump_traceback(_descriptor, all_threads=True)

    def _go_on(self, since: float) -> None:
        global _quiet_since  # noqa: PLW0603
        if _quiet_since == since:
            _quiet_since = time.monotonic()


@contextmanager
def in_workers() -> Iterator[Callable[[int], None] | None]:
    """Block the signals while worker processes start; yield the function that each worker has to call first, if any.

    The worker then writes its stacks to the same file; the function's argument may be any number. A new process has
    none of its parent's handlers; the signal stays pending until the worker has its own.
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
    _install_handlers()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL, WITHOUT_LOCK})


def _forget() -> None:
    """Reset the state in a forked process, which has none of its parent's threads but shares their pipe."""
    global _writer, _quiet_since  # noqa: PLW0603
    _writer = _quiet_since = None


os.register_at_fork(after_in_child=_forget)


def _append_to(path: Path, flags: int) -> None:
    global _descriptor, _path  # noqa: PLW0603 - faulthandler needs the descriptor to stay open
    opened = open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags)
    _path = path
    if _descriptor < 0:
        _descriptor = opened
    else:
        # A thread that writes meanwhile writes to the old or to the new file.
        os.dup2(opened, _descriptor, inheritable=False)
        os.close(opened)
