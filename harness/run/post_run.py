"""What follows a run that did not complete: its GPUs are looked after, it is explained. Faults here cost no record."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.diagnosis import explain_run
from harness.environments.executors.job import Exit
from harness.evidence.outcome import Outcome, StoppedBy
from harness.evidence.run_files import Explanation, Intent
from harness.evidence.stall_history import known_standstills
from harness.run.gpu_health import (
    Checkup,
    MemoryBefore,
    after_completion,
    after_failure,
    after_interruption,
    after_unkillable,
    before_run,
)
from harness.run.watch.limits import Limits, limits_of

if TYPE_CHECKING:
    from harness.evidence.app_files import Phase


class Aftercare:
    """The aftercare of one run, and what it needs from before. `notes` tell the record what could not be done."""

    def __init__(self, checkup: Checkup, intent: Intent) -> None:
        self._checkup = checkup
        self._intent = intent
        self._memory: MemoryBefore = {}
        self._began = time.monotonic()
        self.notes: list[str] = []

    def prepare(self) -> tuple[str, ...]:
        """Note the memory in use before the run, and probe GPUs where a later probe could not be judged otherwise.

        Gives what forbids to start it.
        """
        problems: tuple[str, ...] = ()
        with self._tolerated("looking at the GPUs before the run"):
            self._memory, problems = before_run(self._checkup)
        return problems

    def limits(self) -> Limits:
        """The watchdog's: the run's own, or learned from earlier runs of the same kind."""
        if self._checkup.run.limits is not None:
            return Limits.fixed(self._checkup.run.limits)
        history: list[Mapping[Phase, float]] = []
        with self._tolerated("reading how long earlier runs stood still"):
            history = known_standstills(self._checkup.results, self._intent)
        return limits_of(history, self._intent.device)

    def host_problems(self, stopped_by: StoppedBy | None) -> tuple[str, ...]:
        """Look after the GPUs of a run that did not complete; from afar where something of it cannot be killed."""
        with self._tolerated("looking after the GPUs"):
            # Not the intent's time: the clock may have been set since.
            since = time.time() - (time.monotonic() - self._began)
            return after_failure(self._checkup, self._memory, since, unkillable=stopped_by == "host").problems
        return ()

    def after_unkillable(self) -> None:
        """Write down that the GPUs can be used no more."""
        with self._tolerated("noting that the GPUs can be used no more"):
            after_unkillable(self._checkup)

    def after_completion(self) -> None:
        """Write down that the GPUs are well."""
        with self._tolerated("noting that the GPUs are well"):
            after_completion(self._checkup)

    def after_interruption(self) -> None:
        """Wait until the GPUs have their memory back."""
        with self._tolerated("waiting for the GPUs' memory"):
            after_interruption(self._checkup, self._memory)

    def explanation(self, outcome: Outcome, exits: Mapping[str, Exit]) -> Explanation | None:
        """Why it did not complete."""
        intent = self._intent
        with self._tolerated("explaining it"):
            return explain_run(self._checkup.folder, outcome, exits, intent.host, intent.rocm, intent.torch)
        return None

    @contextmanager
    def _tolerated(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.notes.append(f"{what} failed: {type(error).__name__}: {error}")
