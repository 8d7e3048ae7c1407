"""A lock that keeps environments and images in place while a command makes them, or runs cells in them.

Before and between the runs of a command, no process or container shows that the command needs them.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.base.errors import InUseError, UserError
from harness.base.files.shared_locks import is_at, lock_at_once
from harness.base.files.storage import open_regular
from harness.base.paths import ENVIRONMENTS

LOCK = "in-use.lock"
LOOK_SECONDS = 1.0
_held: list[int] = []


def keep_in_place(environments: Path = ENVIRONMENTS) -> None:
    """Keep environments and images from being removed while this process lives; wait for a removal under way to end."""
    while not _held:
        with _opened(environments) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            if is_at(stream.fileno(), environments / LOCK):
                _held.append(os.dup(stream.fileno()))


@contextmanager
def try_exclusive_use(environments: Path = ENVIRONMENTS) -> Iterator[bool]:
    """Yield whether no command makes environments or images, or runs cells in them; then none can begin to."""
    with _opened(environments) as stream:
        yield lock_at_once(stream.fileno(), environments / LOCK)


def process_in(folder: Path) -> int | None:
    """Return a process whose interpreter is in a folder; None if there is none."""
    # Import here, because it is slow, and every command imports this module.
    import psutil  # noqa: PLC0415

    for process in psutil.process_iter():
        try:
            if process.cmdline()[:1] and Path(process.cmdline()[0]).is_relative_to(folder):
                return int(process.pid)
        except (psutil.Error, OSError, IndexError):
            continue
    return None


def wait_for_processes(folder: Path, seconds: float, notify: Callable[[str], None]) -> None:
    """Wait until no process runs in an environment that has to be made again.

    Raises:
        InUseError: when one still does after `seconds`.
    """
    begun, said = time.monotonic(), False
    while pid := process_in(folder):
        if time.monotonic() - begun > seconds:
            raise InUseError(
                f"{folder}: its Python or its lock was changed, so it has to be made again, but process {pid} runs in "
                "it; give the command again when that has ended"
            )
        if not said:
            notify(f"{folder} has to be made again: waiting for the end of process {pid}, which runs in it")
            said = True
        time.sleep(LOOK_SECONDS)


def _opened(environments: Path) -> BinaryIO:
    lock = environments / LOCK
    try:
        environments.mkdir(parents=True, exist_ok=True)
        # Open without following links: the lock would never be recognised as the file behind a link.
        return open_regular(lock, adding=True)
    except PermissionError as error:
        if error.errno != errno.EACCES:
            raise
        remedy = "where this checkout is another user's, clone the repository into a folder of your own"
        raise UserError(f"{lock}: cannot be written: {error.strerror}; {remedy}") from None
