"""Ctrl-C, TERM and HUP end a command in order: once, then they wait for the cleaning up."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt; tell of the later ones that the cleaning up is under way."""
    asked = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            sys.stderr.write("still ending the running processes, one moment\n")
            return
        asked = True
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
