"""The stacks of all threads of this process, written from inside: neither ptrace nor a right is needed.

They are written at SIGUSR1, and when there was no sign of progress for a minute. faulthandler writes them in plain C,
also while a call holds the interpreter's lock. There is one faulthandler in a process, so that there is one file in use
at a time. Standard library only.
"""

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

SIGNAL = signal.SIGUSR1
QUIET_S = 60.0

_descriptor = -1
_path: Path | None = None


def listen(path: Path) -> None:
    """From now on write stacks to `path` at SIGUSR1; what it holds of an earlier process goes.

    Raises:
        OSError: when the file cannot be made.
    """
    faulthandler.cancel_dump_traceback_later()
    _append_to(path, os.O_TRUNC)


def progressed() -> None:
    """A sign of progress: stacks are written a minute after the last one, and every minute then."""
    if _descriptor >= 0:
        faulthandler.dump_traceback_later(QUIET_S, repeat=True, file=_descriptor)


def finished() -> None:
    """No more signs of progress are to come. SIGUSR1 is still answered."""
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def in_workers() -> Iterator[Callable[[int], None] | None]:
    """Around the start of worker processes: what each has to call first, with any number, to write to the same file.

    A process that starts anew has none of its parent's handlers; until it has its own, the signal waits.
    """
    if _path is None:
        yield None
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})
    try:
        yield partial(_listen_in_worker, _path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen_in_worker(path: Path, _number: int) -> None:
    # The timer is a thread, which a forked process has not: to cancel it there would wait for ever.
    _append_to(path, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGNAL})


def _append_to(path: Path, flags: int) -> None:
    global _descriptor, _path  # noqa: PLW0603 - as faulthandler's own, which needs the descriptor to stay open
    before = _descriptor
    _descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, 0o666)
    _path = path
    # Otherwise it would not see that its handler is gone where somebody has set another meanwhile.
    faulthandler.unregister(SIGNAL)
    faulthandler.register(SIGNAL, _descriptor, all_threads=True, chain=False)
    if before >= 0:
        os.close(before)
