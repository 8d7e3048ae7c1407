"""Notes signals that ask to stop, so that started processes can be ended and the results so far be reported."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Interruption:
    """The number of the signal that came; None until one comes."""

    signum: int | None = None

    def came(self) -> bool:
        """Return whether a signal came."""
        return self.signum is not None

    def name(self) -> str | None:
        """Return the name of the signal; None until one comes."""
        return None if self.signum is None else signal.Signals(self.signum).name


@contextmanager
def noted() -> Iterator[Interruption]:
    """Note the first signal; a second one of the same kind kills the process."""
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
