"""Importing large packages, which is half of what a short command takes."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing(package: str) -> Iterator[None]:
    """Import `package`, and what comes with it, without looking for garbage, and leave all that out of later looks.

    A collection goes through every object there is; torch alone makes hundreds of thousands, none of them garbage.
    """
    if package in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
