"""Importing large packages, which is half of what a short command takes."""

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing(package: str) -> Iterator[None]:
    """Import `package`, and what comes with it, without looking for garbage, and leave all that out of later looks.

    A collection goes through every object there is; torch alone makes hundreds of thousands, none of them garbage.
    Ctrl-C inside ends the process at once.
    """
    if package in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    # An exception there is lost in some libraries, and others crash by it.
    if raises := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if raises:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        gc.enable()
