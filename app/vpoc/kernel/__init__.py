"""The compiled kernel, if there is one: its results are bitwise identical to those of numpy.

The sources are compiled into one library beside them that is named by their hash, so that a library of other sources is
never loaded. Without it, or with VPOC_KERNEL=off in the environment, numpy computes.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

SOURCES = ("naked.c", "profiles.c")
_T = TypeVar("_T")


def file_name() -> str:
    """Return the file name of the library for the present sources."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return f"kernel-{digest.hexdigest()[:16]}.so"


@cache
def library() -> ctypes.CDLL | None:
    """Return the library; None if there is none for this platform, or it is switched off."""
    if os.environ.get("VPOC_KERNEL") == "off":
        return None
    try:
        return ctypes.CDLL(str(Path(__file__).with_name(file_name())))
    except OSError:
        return None


def profile_kernel() -> str:
    """Return in words whether the kernel or numpy computes profiles here."""
    if library() is not None:
        return "compiled profile kernel"
    if os.environ.get("VPOC_KERNEL") == "off":
        return "numpy profiles: VPOC_KERNEL=off"
    return "numpy profiles: no compiled kernel for this platform"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_threads(work: Callable[[int, int], _T], borders: Sequence[int]) -> list[_T]:
    """Return the results of `work` on the parts between `borders`, each in a thread.

    The library releases Python's lock.
    """
    parts = list(pairwise(borders))
    if len(parts) == 1:
        return [work(*parts[0])]
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(lambda part: work(*part), parts))


def address(array: Any, row: int = 0) -> ctypes.c_void_p:
    """Return the memory address of element `row` of a contiguous array; the caller must keep the array alive."""
    return ctypes.c_void_p(array.ctypes.data + row * array.itemsize)
