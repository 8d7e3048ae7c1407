"""Makes a stack while runs go on: in a process of its own, at the lowest priority."""

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
    """A stack to be downloaded and built, by one of its cells."""

    bench: PortableBench
    cell: Cell

    def carry_out(self, _tell: Tell) -> None:
        """Make it; what is running has the processor and the disk first."""
        os.nice(LOWEST_PRIORITY)
        with suppress(psutil.Error, OSError):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
        self.bench.open().environment(self.cell)


@dataclass
class Background:
    """At most one stack that is being made; `begun` are all that were. What failed is made again at its turn."""

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
        # Its status is taken at once: while a child is there that has ended, whoever watches a run looks ten times a
        # second at all processes, for what the run may have left.
        threading.Thread(target=self._helper.process.wait, daemon=True).start()

    def wait_for(self, stack: str) -> bool:
        """Return whether a stack was made in the background; wait for it, and say what failed of it."""
        if self._helper is None or self._stack != stack:
            return False
        if self._helper.process.poll() is None:
            self.display.step(f"waiting for stack {stack}, which is being made in the background")
        if why := self._helper.failure():
            self.display.problem(f"stack {stack} could not be made in the background: {why}; trying once more")
        self.close()
        return why is None

    def close(self) -> None:
        """End what is being made."""
        if self._helper:
            self._helper.end()
            self._helper.close()
            self._helper = None
