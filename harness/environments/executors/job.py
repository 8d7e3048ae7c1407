"""Interfaces to start, find and stop a command of a run on this host."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    # The Docker SDK takes half a second to import, and is not needed to read how processes ended.
    from harness.environments.executors.container import Container

# Offset of the exit code by which a shell or an init process reports a signal: 128 + n.
SHELL_SIGNALS = 128
_EXIT = re.compile(
    r"(?:exit (?P<code>\d{1,9})|signal (?P<number>\d{1,9})|(?P<name>SIG\w+))(?P<memory>, out of memory)?"
)


class JobLost(Exception):  # noqa: N818
    """The process or engine that ran the job is gone or does not answer, so nobody can say how the job ended."""


class EngineSilent(JobLost):
    """The engine that should start a job does not answer; it may answer again later."""


@dataclass(frozen=True)
class Job:
    """One process of a run.

    Attributes:
        variables: its whole environment; nothing else leaks in.
        folder: the folder of the run.
        log: gets the output of the process.
        container: the limits of its container; None outside of containers.
        note: gets a description of the started process or container, by which another harness finds the process, and
            people see what the engine made of a container.
        work: the working directory outside of containers; None for `folder`.
        within: a folder in the working directory, to work in instead.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    folder: Path
    log: Path
    container: "Container | None" = None
    note: Path | None = None
    work: Path | None = None
    within: str = ""


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or the negative number of the signal that ended it.

    `out_of_memory`: the kernel killed it or one of its descendants at the container's memory limit.
    """

    code: int
    out_of_memory: bool = False

    @classmethod
    def parse(cls, words: str) -> Self:
        """Return the exit that `str` turned into `words`.

        Raises:
            ValueError: when `words` describe no exit.
        """
        found = _EXIT.fullmatch(words)
        if found is None or (found["name"] and found["name"] not in signal.Signals.__members__):
            raise ValueError(f"{words!r} is not how a process ends")
        if found["code"]:
            return cls(int(found["code"]), found["memory"] is not None)
        number = int(found["number"]) if found["number"] else int(signal.Signals[found["name"]])
        return cls(-number, found["memory"] is not None)

    @property
    def ok(self) -> bool:
        """Return whether the process reports success."""
        return self.code == 0

    def __str__(self) -> str:
        """Return `exit 3`, or the name of the signal."""
        memory = ", out of memory" if self.out_of_memory else ""
        if self.code >= 0:
            return f"exit {self.code}{memory}"
        try:
            return signal.Signals(-self.code).name + memory
        except ValueError:
            return f"signal {-self.code}{memory}"


class Handle(Protocol):
    """A started job."""

    @property
    def pid(self) -> int | None:
        """The host's number of its first process; None if unknown."""

    @property
    def inspected(self) -> Mapping[str, Any] | None:
        """The engine's last answer about its container; None if there is none."""

    @property
    def unanswered(self) -> bool:
        """Return whether the engine that runs the job does not answer at the moment; the job may still run, or not."""

    @property
    def silent_seconds(self) -> float:
        """The seconds, in total, for which the engine has not answered so far."""

    def poll(self) -> Exit | None:
        """Return how the process ended, or None while it may run; raise `JobLost` when that cannot be known."""

    def stop(self, grace: float) -> bool:
        """Send TERM, wait `grace` seconds, and send KILL; return False if something cannot be killed."""


class Executor(Protocol):
    """Starts jobs on this host."""

    def start(self, job: Job) -> Handle:
        """Start a job; raise OSError when it cannot be started, `JobLost` when it is refused or nothing answers."""

    def find(self, job: Job) -> Handle | None:
        """Return the process or container that works in the folder of a job, whoever started it; None if there is none.

        The arguments of the job are ignored: a process is found by its note. The whole output of a container goes to
        the log.
        """
