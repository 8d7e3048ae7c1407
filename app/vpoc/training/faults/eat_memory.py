"""Uses more and more memory until the kernel kills this process: an injected fault.

Started as `python -m vpoc.training.faults.eat_memory PID`, where PID is the parent, with which the process ends.
Standard library only.
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import NoReturn

from vpoc.ranks.child import die_with

EATEN_BYTES = 16 << 20
EATEN_EVERY_S = 0.01


def eat_memory() -> NoReturn:
    """Allocates ever more resident memory. MemoryError if a limit makes the kernel refuse the memory instead."""
    with contextlib.suppress(OSError):
        # If no container has a limit, the kernel should kill this process before any other of the host.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    eaten = []
    while True:
        eaten.append(b"\1" * EATEN_BYTES)
        time.sleep(EATEN_EVERY_S)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    eat_memory()
