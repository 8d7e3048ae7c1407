"""Runs of stacks that could not be made for now: they have one more turn, after all others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harness.base.silent_hosts import forget_silent
from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.plan import PendingRun, PlannedRun

T = TypeVar("T", PlannedRun, PendingRun)


@dataclass
class PutOff(Generic[T]):
    """The runs that have another turn, and the stacks that had one."""

    _runs: list[T] = field(default_factory=list)
    _stacks: set[str] = field(default_factory=set)

    def without(self, left: Sequence[T], error: StackUnavailableError) -> list[T]:
        """Return the runs that are not of a stack that cannot be made; if it may be later, keep its own for then."""
        if error.passes and error.stack.name not in self._stacks:
            self._stacks.add(error.stack.name)
            self._runs += [one for one in left if one.cell.stack == error.stack]
        return [one for one in left if one.cell.stack != error.stack]

    def take(self) -> list[T]:
        """Return those that were kept: their turn has come, and that of the hosts that did not answer."""
        if self._runs:
            forget_silent()
        taken, self._runs = self._runs, []
        return taken
