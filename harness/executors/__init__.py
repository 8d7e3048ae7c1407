"""How a command of a run is started, found again and stopped on this host."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """One process of the run whose folder is `folder`. `variables` is its whole environment: nothing else leaks in."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    folder: Path
    log: Path


@dataclass(frozen=True)
class Exit:
    """How a process ended: exit code, or the signal that ended it."""

    code: int

    @property
    def ok(self) -> bool:
        """Whether the process itself says it succeeded."""
        return self.code == 0

    def __str__(self) -> str:
        """`exit 3`, or the signal's name."""
        if self.code >= 0:
            return f"exit {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Handle(Protocol):
    """A job that was started."""

    def poll(self) -> Exit | None:
        """How the process ended, or None while it runs."""

    def stop(self, grace: float) -> bool:
        """TERM, wait `grace` seconds, KILL; False when something cannot be killed."""


class Executor(Protocol):
    """Starts jobs on this host."""

    def start(self, job: Job) -> Handle:
        """Start a job; raises OSError when it cannot be started."""

    def find(self, run_id: str) -> Handle | None:
        """The job of a run if it still runs, started by whomever."""
