"""Takes memory until the kernel ends this process: an injected fault. `python -m vpoc.training.faults.eat_memory PID`.

PID is that of the parent, which the process does not outlive. Standard library only.
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
    """Holds ever more resident memory. MemoryError where a limit makes the kernel refuse it instead."""
    with contextlib.suppress(OSError):
        # Where no container has a limit, this process is to be killed before any other of the host.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    eaten = []
    while True:
        eaten.append(b"\1" * EATEN_BYTES)
        time.sleep(EATEN_EVERY_S)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    eat_memory()
