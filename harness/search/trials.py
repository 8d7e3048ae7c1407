"""Runs of cells that are compared: each is repeated until it counts, and found again by its id.

The caller makes the runs; everything else is pure.
"""

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from harness.base.errors import UnhealthyHostError, UserError
from harness.base.files.hashes import json_hash
from harness.evidence.files.run_files import Record
from harness.evidence.records import attempt_ids
from harness.evidence.verdicts.counting import NOT_BEGUN, REFUSED, Counts
from harness.matrix.cells import Cell


class RecountedError(Exception):
    """A run that had passed turned out to have failed: a GPU was found unhealthy after it."""


def require_begun(record: Record) -> None:
    """Refuse to go on after a run that was not begun.

    Raises:
        UnhealthyHostError: because an unhealthy GPU keeps all further runs from being begun, too.
    """
    if record.diagnosis == NOT_BEGUN:
        raise UnhealthyHostError(f"{record.detail}; fix the host (`matrix doctor`), then the same command continues")


@dataclass(frozen=True)
class Trial:
    """A run that a comparison asks for. `repeat` counts the runs of its cell, `position` all runs, both from 1."""

    cell: Cell
    run_id: str
    repeat: int
    position: int
    seconds_left: float | None


class TrialRunner(Protocol):
    """Runs trials, and finds those that were run before."""

    def find(self, run_id: str) -> Record | None:
        """Return the record of a trial; None if it was not run."""

    def is_in_place(self, record: Record) -> bool:
        """Return whether a run was made on the GPUs that are asked for now."""

    def run(self, trial: Trial) -> Record:
        """Run a trial."""

    def counts(self) -> Counts:
        """Return how every run in that results folder counts."""


@dataclass
class Trials:
    """The runs of one comparison, at most `total`. Their ids begin with `campaign`."""

    runner: TrialRunner
    campaign: str
    total: int
    _told: dict[str, bool] = field(default_factory=dict)
    _repeats: Counter[str] = field(default_factory=Counter)
    _seconds: list[float] = field(default_factory=list)
    _counts: Counts | None = None

    def passed(self, cell: Cell) -> bool:
        """Return whether the next run of a cell passed.

        Raises:
            RecountedError: when a run that was reported as passed turned out to have failed.
            UserError: as `make`.
        """
        run_id = self.make(cell)
        self._told[run_id] = self._known()[run_id].counts_as == "passed"
        return self._told[run_id]

    def make(self, cell: Cell) -> str:
        """Return the id of the next run of a cell: an earlier run at this position, or a new one.

        Runs that do not count say nothing and are repeated. A run at this position that was made on another GPU, before
        an earlier one was counted in another way, answers another question.

        Raises:
            UserError: when a GPU is unhealthy; the runner may raise others.
        """
        self._repeats[cell.id] += 1
        position = self._repeats.total()
        for run_id in attempt_ids(f"{self.campaign}-{position:04d}-{json_hash(cell.id)[:6]}"):
            record = self.runner.find(run_id)
            if record is not None and not self.runner.is_in_place(record):
                continue
            if record is None:
                record = self._run(cell, run_id, position)
                require_begun(record)
                if self._known()[run_id].kind == REFUSED:
                    raise UserError(f"{cell.id}: the app refuses this command: {record.detail}")
            self._seconds.append(record.finished - record.intent.started)
            if self._known()[run_id].counts:
                return run_id
        raise AssertionError("the attempts never end")

    def _run(self, cell: Cell, run_id: str, position: int) -> Record:
        # The durations of earlier runs are known at once when a search is continued.
        left = median(self._seconds) * (self.total - position + 1) if self._seconds else None
        record = self.runner.run(Trial(cell, run_id, self._repeats[cell.id], position, left))
        # The probes of GPUs before and after this run may change how earlier runs count.
        self._counts = None
        known = self._known()
        if any((known[run_id].counts_as == "passed") != passed for run_id, passed in self._told.items()):
            raise RecountedError
        return record

    def _known(self) -> Counts:
        if self._counts is None:
            self._counts = self.runner.counts()
        return self._counts
