"""Makes a stack while runs go on, in a separate process with the lowest priority."""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.helpers.helper import Helper, Tell
from harness.campaign.helpers.portable_bench import PortableBench
from harness.matrix.cells import Cell

LOWEST_PRIORITY = 19


@dataclass(frozen=True)
class StackToMake:
    """A stack to download and build, given by one of its cells."""

    bench: PortableBench
    cell: Cell

    def carry_out(self, _tell: Tell) -> None:
        """Make the stack at the lowest priority, so that running work has the processor and the disk first."""
        os.nice(LOWEST_PRIORITY)
        with suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
        self.bench.open().environment(self.cell)


@dataclass
class Background:
    """Makes one stack at a time in the background. `begun` has all of them; a failed one is made again at its turn."""

    bench: Bench
    display: Display
    begun: set[str] = field(default_factory=set)
    _stack: str = ""
    _helper: Helper | None = None

    def make(self, cell: Cell) -> None:
        """Begin to make the stack of a cell, unless one is being made, or this one was begun before."""
        if cell.stack.name in self.begun or (self._helper and self._helper.process.poll() is None):
            return
        self.close()
        self.begun.add(cell.stack.name)
        self._stack = cell.stack.name
        self._helper = Helper.begin(StackToMake(PortableBench.of(self.bench), cell))
        # Reap the child at once: while a dead child remains, the watchdog of a run scans all processes ten times a
        # second for what the run may have left.
        threading.Thread(target=self._helper.process.wait, daemon=True).start()

    def wait_for(self, stack: str) -> bool:
        """Wait for a stack that is being made in the background, report its failure, and return whether it was made."""
        if self._helper is None or self._stack != stack:
            return False
        if self._helper.process.poll() is None:
            self.display.step(f"waiting for stack {stack}, which is being built in the background")
        if why := self._helper.failure():
            self.display.problem(f"stack {stack} could not be built in the background: {why}; trying once more")
        self.close()
        return why is None

    def close(self) -> None:
        """Stop making the current stack."""
        if self._helper:
            self._helper.end()
            self._helper.close()
            self._helper = None
