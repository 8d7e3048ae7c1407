"""Locks between processes, which their children keep."""

import contextlib
import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.base.errors import InUseError
from harness.base.files.shared_locks import is_at
from harness.base.files.storage import open_regular

# Longest wait for a lock that is never held for longer than a minute, in seconds.
SHORT_LOCK_SECONDS = 600.0
# A shorter wait is not reported, in seconds.
QUIET_SECONDS = 1.0
LOOK_SECONDS = 0.1

_held: set[int] = set()
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(file: Path, say: Callable[[str], None] = _log.warning, seconds: float | None = None) -> Iterator[None]:
    """Run the block in one process at a time: others wait at the lock file, which stays. `say`: reports a long wait.

    Raises:
        InUseError: when the lock is not released within `seconds`; None waits without a limit.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        descriptor = -1
        # A file that was removed during the wait excludes no one, because the next process makes another one.
        while not is_at(descriptor, file):
            stack.close()
            descriptor = stack.enter_context(open_regular(file, adding=True)).fileno()
            wait_for_lock(descriptor, file, seconds, say)
        with counted_as_held(descriptor):
            yield


def wait_for_lock(
    descriptor: int, file: Path, seconds: float | None, say: Callable[[str], None] = _log.warning
) -> None:
    """Lock a file as soon as no other process has locked it. `say`: called with a line if that takes long.

    Raises:
        InUseError: when the lock is not released within `seconds`; None waits without a limit.
    """
    begun, said = time.monotonic(), False
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        waited = time.monotonic() - begun
        if seconds is not None and waited > seconds:
            raise InUseError(
                f"{file}: another process has locked it for {seconds:.0f} s; `fuser {file}` names that process: end it"
            )
        if waited >= QUIET_SECONDS and not said:
            say(f"waiting for another process to unlock {file}; `fuser {file}` names it")
            said = True
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def counted_as_held(descriptor: int) -> Iterator[None]:
    """Count a descriptor among this process's locks. The lock is released when all processes have closed the file."""
    _held.add(descriptor)
    try:
        yield
    finally:
        _held.discard(descriptor)


def held_locks() -> tuple[int, ...]:
    """Return the descriptors of the locks that this process holds.

    A child that inherits them keeps its work locked, also if this process dies first.
    """
    return tuple(sorted(_held))
