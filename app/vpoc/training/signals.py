"""Ending in good order when asked to."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vpoc.errors import Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Interrupted`, so that loader workers are ended and files cleaned up."""
    owner = os.getpid()

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        # Loader workers inherit this handler; their parent ends them.
        if os.getpid() == owner:
            raise Interrupted(signum)
        if signum == signal.SIGTERM:
            os._exit(128 + signum)

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
