"""The environments and images of this checkout are removed only while no command makes them, or runs cells in them.

Between two runs of a command no process and no container shows that it needs them, and none before the first.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.base.files.shared_locks import is_at, lock_at_once
from harness.base.files.storage import open_regular
from harness.base.paths import ENVIRONMENTS

LOCK = "in-use.lock"
_held: list[int] = []


def keep_in_place(environments: Path = ENVIRONMENTS) -> None:
    """Keep them from being removed for as long as this process lives; waits for a removal that is under way."""
    while not _held:
        with _opened(environments) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            if is_at(stream.fileno(), environments / LOCK):
                _held.append(os.dup(stream.fileno()))


@contextmanager
def alone_with(environments: Path = ENVIRONMENTS) -> Iterator[bool]:
    """Yield whether no command runs cells in them; then none begins to meanwhile."""
    with _opened(environments) as stream:
        yield lock_at_once(stream.fileno(), environments / LOCK)


def _opened(environments: Path) -> BinaryIO:
    environments.mkdir(parents=True, exist_ok=True)
    # A link that a program put there would never be the file that it leads to.
    return open_regular(environments / LOCK, adding=True)
