"""Faster imports of large packages, which are half of the time of a short command."""

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing(package: str) -> Iterator[None]:
    """Import `package` inside this context without garbage collection, and exempt the new objects from later ones.

    A collection visits every object; torch alone creates hundreds of thousands, and none of them is garbage. Inside the
    context Ctrl-C ends the process at once.
    """
    if package in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    # A KeyboardInterrupt during an import is lost in some libraries, and crashes others.
    if raises := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if raises:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        gc.enable()
