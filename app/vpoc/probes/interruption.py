"""Signals that ask to end, noted, so that what was started can be ended and results so far be reported."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interruption:
    """The number of the signal that came, None as long as none did."""

    signum: int | None = None

    def came(self) -> bool:
        """Return whether a signal came."""
        return self.signum is not None

    def name(self) -> str | None:
        """Its name, None as long as none came."""
        return None if self.signum is None else signal.Signals(self.signum).name


@contextmanager
def noted() -> Iterator[Interruption]:
    """Note the first signal; the second of the same kind ends the process hard."""
    interruption = Interruption()

    def note(signum: int, _frame: FrameType | None) -> None:
        interruption.signum = signum
        signal.signal(signum, signal.SIG_DFL)

    before = {signum: signal.signal(signum, note) for signum in SIGNALS}
    try:
        yield interruption
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
