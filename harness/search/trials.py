"""Runs of cells that are compared: each is repeated until it counts, and found again by its id.

What runs them is an argument; pure but for that.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Protocol

from harness.base.errors import UserError
from harness.base.storage import json_hash
from harness.evidence.run_files import Record
from harness.evidence.verdicts.verdict import COUNTED
from harness.matrix.cells import Cell

# A host fault so often in a row is not going to pass.
MOST_FAULTS = 3


class DiscountedError(Exception):
    """A run that was counted before turned out to be discounted by an unhealthy GPU."""


@dataclass(frozen=True)
class Trial:
    """A run that a comparison asks for. `repeat` counts the runs of its cell, `position` all of them, both from 1."""

    cell: Cell
    run_id: str
    repeat: int
    position: int
    seconds_left: float | None


class TrialRunner(Protocol):
    """Runs trials, and finds those that were run before."""

    def find(self, run_id: str) -> Record | None:
        """Return the record of a trial; None where it was not run."""

    def run(self, trial: Trial) -> Record:
        """Run a trial."""

    def discounted(self) -> Collection[str]:
        """Return the ids of the runs that do not count, because their GPU was unhealthy."""


@dataclass
class Trials:
    """The runs of one comparison, at most `total`. `campaign` begins their ids."""

    runner: TrialRunner
    campaign: str
    total: int
    _counted: set[str] = field(default_factory=set)
    _repeats: Counter[str] = field(default_factory=Counter)
    _seconds: list[float] = field(default_factory=list)
    _discounted: Collection[str] | None = None

    def passed(self, cell: Cell, position: int) -> bool:
        """Return whether a run of a cell completed: one that was made before at this position, or a new one.

        Runs that were interrupted, discounted or a host fault say nothing and are repeated.

        Raises:
            DiscountedError: when a run that was returned earlier turned out to be discounted.
            UserError: when the host fails again and again; also what the runner raises.
        """
        self._repeats[cell.id] += 1
        base = f"{self.campaign}-{position:04d}-{json_hash(cell.id)[:6]}"
        faults = 0
        for attempt in count(1):
            run_id = base if attempt == 1 else f"{base}-again{attempt}"
            record = self.runner.find(run_id)
            if record is None:
                record = self._run(cell, run_id, position)
                faults += record.outcome == "host-fault"
            if faults == MOST_FAULTS:
                raise UserError(f"{record.detail}; fix the host (`matrix doctor`), then the same command continues")
            self._seconds.append(record.finished - record.intent.started)
            if record.outcome in COUNTED and run_id not in self._known_discounted():
                self._counted.add(run_id)
                return record.outcome == "completed"
        raise AssertionError("the attempts never end")

    def _run(self, cell: Cell, run_id: str, position: int) -> Record:
        # Those that were made before tell it already at the first run of a search that is continued.
        left = median(self._seconds) * (self.total - position + 1) if self._seconds else None
        record = self.runner.run(Trial(cell, run_id, self._repeats[cell.id], position, left))
        if record.outcome != "completed":
            self._discounted = None
            if self._counted & set(self._known_discounted()):
                raise DiscountedError
        return record

    def _known_discounted(self) -> Collection[str]:
        if self._discounted is None:
            self._discounted = self.runner.discounted()
        return self._discounted
