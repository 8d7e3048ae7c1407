"""The effects of injected faults, each as it occurs in practice, in the process that calls the function."""

import ctypes
import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from vpoc.errors import UserError, from_os_error
from vpoc.training.faults.eat_memory import eat_memory

FLOOD_LINES = 200_000
TORN_LINES = b'{"schema": 1, "wall": 17\n\x00\x01\xff\xfe{]\xc3\x28'
"""Half a line, and bytes that no decoder accepts; without a line end, so that the next line is damaged, too."""
LARGEST_BLOCK = 1 << 30
SMALLEST_BLOCK = 1 << 12

_ASYNCHRONOUS = (
    "\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing AMD_SERIALIZE_KERNEL=3\n"
    "Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.\n"
)
# Newer torch has a class of its own for errors that the runtime reports.
_accelerator_error: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)

RAISED_ERRORS: Mapping[str, Exception] = {
    # torch.OutOfMemoryError is the newer name.
    "oom": torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 1024.00 GiB (injected fault)"),
    "blas-alloc-failed": RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    "blas-not-initialized": RuntimeError(
        "CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`"
    ),
    "blas-internal-error": RuntimeError(
        "CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling hipblasLtMatmul with transpose_mat1 1 transpose_mat2 0 "
        "m 32 n 64 k 54 mat1_ld 54 mat2_ld 54 result_ld 32 abcType 0 computeType 2 scaleType 0"
    ),
    # In real torch logs, too, the failing call that is named here is a status:
    # https://github.com/Comfy-Org/ComfyUI/issues/3698
    "blas-not-supported": RuntimeError(
        "CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `HIPBLAS_STATUS_NOT_SUPPORTED`"
    ),
    "illegal-access": _accelerator_error(f"HIP error: an illegal memory access was encountered{_ASYNCHRONOUS}"),
    "no-kernel-image": _accelerator_error(f"HIP error: invalid device function{_ASYNCHRONOUS}"),
    "import-error": ImportError("libamdhip64.so.6: cannot open shared object file: No such file or directory"),
}
"""Errors with the classes and messages of torch or of the dynamic loader."""


def hang(*_: object) -> NoReturn:
    """Sleeps for ever."""
    while True:
        time.sleep(3600)


def hold_gil() -> None:
    """Waits in C, for ever, for a lock that the thread holds itself, while it also holds the interpreter's lock."""
    # Unlike a sleep, this call continues after a signal. A mutex of zeros is unlocked.
    library, lock = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def segv() -> None:
    """Reads from address 0."""
    _without_core()
    ctypes.string_at(0)


def abort() -> None:
    """Aborts, as a library does that finds itself in an impossible state."""
    _without_core()
    os.abort()


def bus_error() -> None:
    """Reads a page of a mapped file that is no longer there, as when shared memory has run out."""
    _without_core()
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        memory[0]


def child_eats_memory() -> NoReturn:
    """Starts a process that uses memory until it is killed; then raises UserError, like a caller that depends on it."""
    command = [sys.executable, "-m", "vpoc.training.faults.eat_memory", str(os.getpid())]
    with subprocess.Popen(command) as child:
        status = child.wait()
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    raise UserError(f"process {child.pid}, which this one started and needs, {how}", exit_code=1)


def flood_log() -> None:
    """Prints more than a reader can handle that keeps all lines, or waits for each."""
    for number in range(1, FLOOD_LINES + 1):
        print(f"injected fault: line {number} of {FLOOD_LINES} that say nothing")


def tear(progress_file: Path) -> None:
    """Appends the remains of an interrupted write and of a damaged disk."""
    with progress_file.open("ab") as stream:
        stream.write(TORN_LINES)


def an_hour_ago() -> float:
    """Return the seconds since 1970 by a clock that was set back."""
    return time.time() - 3600


def fill_disk(folder: Path) -> None:
    """Fills the disk of `folder` until this process ends; UserError when it cannot."""
    try:
        # The file has no name and is never closed: its space is free again however the process ends.
        ballast, path = tempfile.mkstemp(dir=folder)
        Path(path).unlink()
        size, end = LARGEST_BLOCK, 0
        while size >= SMALLEST_BLOCK:
            if _takes(ballast, end, size):
                end += size
            else:
                size //= 2
    except OSError as error:
        raise from_os_error(error, folder) from error


def _takes(descriptor: int, start: int, size: int) -> bool:
    """Allocate `size` bytes of the file from `start` on; False when the disk is full."""
    try:
        os.posix_fallocate(descriptor, start, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        raise
    return True


def _without_core() -> None:
    """Disable core files, because one of a process with torch can have gigabytes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


PROCESS_FAULTS: Mapping[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hold-gil": hold_gil,
    "segv": segv,
    "abort": abort,
    "bus-error": bus_error,
    "exit-0": lambda: os._exit(0),
    "eat-memory": eat_memory,
    "child-eats-memory": child_eats_memory,
    "flood-log": flood_log,
}
"""Faults of a process as a whole."""
