"""The stage of the optimizer step that a process is in, readable from outside. Standard library only.

Progress lines come at most once a second; the stage shows at any time which of several ranks is behind the others.
"""

import mmap
import os
from pathlib import Path

from vpoc.files import open_in_place

SIZE = 16
OUTSIDE, WAITING, FORWARD, BACKWARD, EXCHANGE, UPDATE = range(6)
"""Stages: not in a step; waiting for a batch; in the forward pass; in the backward pass.

In the exchange with other ranks; updating the weights.
"""


class StepStage:
    """16 bytes of memory that are also the file `path`: the optimizer step (from 1; 0 before the first) and its stage.

    Both are 64-bit integers in native byte order, which is little-endian wherever torch has GPUs. The content that an
    earlier process left in the file is overwritten. Without a `path` there is no file.

    Raises:
        OSError: when the file cannot be created.
    """

    def __init__(self, path: Path | None = None) -> None:
        memory: mmap.mmap | bytearray = bytearray(SIZE) if path is None else _mapped(path)
        self._numbers = memoryview(memory).cast("q")

    def at(self, step: int, stage: int) -> None:
        """Record that this process is in `stage` of `step`; costs less than a microsecond."""
        numbers = self._numbers
        if numbers[0] != step:
            # Clear the stage first, so that no reader sees the stage of one step with the number of another.
            numbers[1] = OUTSIDE
            numbers[0] = step
        numbers[1] = stage


def _mapped(path: Path) -> mmap.mmap:
    descriptor = open_in_place(path, os.O_RDWR | os.O_CREAT)
    try:
        # Write the bytes to reserve space: otherwise the first store could raise SIGBUS on a full disk.
        os.pwrite(descriptor, bytes(SIZE), 0)
        os.ftruncate(descriptor, SIZE)
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)
