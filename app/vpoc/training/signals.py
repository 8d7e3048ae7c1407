"""Stopping safely on a signal."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vpoc.errors import Interrupted
from vpoc.progress import Progress


@contextmanager
def interruptible(progress: Progress) -> Iterator[None]:
    """Let SIGINT and SIGTERM stop the work, with `Interrupted`, at its next sign of progress; a second one kills it.

    The handler does not raise by itself: within another library's clean-up the exception would be lost.
    """

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        progress.interrupt(signum)
        signal.signal(signum, signal.SIG_DFL)

    report = sys.unraisablehook

    def report_unless_interrupted(unraisable: "sys.UnraisableHookArgs") -> None:
        if progress.interrupted_by is None:
            report(unraisable)

    # While it is shut down, the loader may also report errors, after the work below has been left for good.
    sys.unraisablehook = report_unless_interrupted
    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        # A signal to the whole process group ends the loader workers first, and the loader reports that as an error.
        if progress.interrupted_by is not None:
            raise Interrupted(progress.interrupted_by) from error
        raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if progress.interrupted_by is None:
            sys.unraisablehook = report
