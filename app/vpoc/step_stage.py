"""Where in an optimizer step a process is, for whoever watches it from outside. Standard library only.

Progress lines come once a second at most; this says at any time which of several ranks is behind the others.
"""

import mmap
import os
from pathlib import Path

SIZE = 16
OUTSIDE, WAITING, FORWARD, BACKWARD, EXCHANGE, UPDATE = range(6)
"""Stages: not in a step; waiting for its batch; in the forward and backward pass; in the exchange with other ranks;
adjusting the weights."""


class StepStage:
    """16 bytes of memory that are also the file `path`: the optimizer step (from 1; 0 before the first) and its stage.

    Both are 64-bit integers in the order of the machine, which is little-endian wherever torch has GPUs. What an
    earlier process left in the file is gone. Without a `path` there is no file.

    Raises:
        OSError: when the file cannot be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        memory: mmap.mmap | bytearray = bytearray(SIZE) if path is None else _mapped(path)
        self._numbers = memoryview(memory).cast("q")

    def at(self, step: int, stage: int) -> None:
        """Say that this process is in `stage` of `step`; costs less than a microsecond."""
        numbers = self._numbers
        if numbers[0] != step:
            # Whoever reads in between must not see the stage of one step with the number of another.
            numbers[1] = OUTSIDE
            numbers[0] = step
        numbers[1] = stage


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # Written, so that there is room for it: else the first store could be a SIGBUS on a full disk.
        os.pwrite(descriptor, bytes(SIZE), 0)
        os.ftruncate(descriptor, SIZE)
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)
