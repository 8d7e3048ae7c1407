"""Runs of stacks that cannot be made for now: they get one more turn, after all others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harness.base.silent_hosts import forget_silent
from harness.campaign.bench.bench import StackUnavailableError
from harness.campaign.bench.plan import PendingRun, PlannedRun

T = TypeVar("T", PlannedRun, PendingRun)


@dataclass
class PutOff(Generic[T]):
    """The runs that get another turn, and the stacks that were put off once."""

    _runs: list[T] = field(default_factory=list)
    _stacks: set[str] = field(default_factory=set)

    def without(self, left: Sequence[T], error: StackUnavailableError) -> list[T]:
        """Return the runs that are not of the stack that cannot be made, and keep its runs if it may be made later."""
        if error.passes and error.stack.name not in self._stacks:
            self._stacks.add(error.stack.name)
            self._runs += [one for one in left if one.cell.stack == error.stack]
        return [one for one in left if one.cell.stack != error.stack]

    def take_deferred(self) -> list[T]:
        """Return the runs that were kept, and forget which hosts did not answer, so that they are asked again."""
        if self._runs:
            forget_silent()
        taken, self._runs = self._runs, []
        return taken
