"""How a command of a run is started, found again and stopped on this host."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    # Half a second with the Docker SDK, which nothing needs that only reads how processes ended.
    from harness.environments.executors.container import Container

# A shell or an init process reports signal n as exit code 128 + n.
SHELL_SIGNALS = 128
_EXIT = re.compile(
    r"(?:exit (?P<code>\d{1,9})|signal (?P<number>\d{1,9})|(?P<name>SIG\w+))(?P<memory>, out of memory)?"
)


class JobLost(Exception):  # noqa: N818
    """Whatever ran the job is gone or does not answer: nobody can say how the job ended."""


class EngineSilent(JobLost):
    """The engine that was to start a job does not answer; it may do so again in a while."""


@dataclass(frozen=True)
class Job:
    """One process of the run whose folder is `folder`. `variables` is its whole environment: nothing else leaks in.

    Outside of a container it works in `work`, or in that folder where there is none; `within` is a folder in that.

    `log` gets its output. `container` says what limits it where it runs in one. `note` gets what is known of it once it
    was started: by that another harness finds the process, and people see what the engine made of each container.
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
    """How a process ended: exit code, or the signal (negative) that ended it.

    `out_of_memory`: the kernel killed it, or something it started, at the container's limit.
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
        """True if the process itself says it succeeded."""
        return self.code == 0

    def __str__(self) -> str:
        """`exit 3`, or the signal's name."""
        memory = ", out of memory" if self.out_of_memory else ""
        if self.code >= 0:
            return f"exit {self.code}{memory}"
        try:
            return signal.Signals(-self.code).name + memory
        except ValueError:
            return f"signal {-self.code}{memory}"


class Handle(Protocol):
    """A job that was started."""

    @property
    def pid(self) -> int | None:
        """The number this host gives its first process; None where that is not known."""

    @property
    def inspected(self) -> Mapping[str, Any] | None:
        """The engine's last answer about its container; None where there is none."""

    @property
    def unanswered(self) -> bool:
        """Return whether what runs it does not answer just now and is waited for: it may still run, or not."""

    @property
    def silent_seconds(self) -> float:
        """Return for how many seconds, in all, what runs it has not answered so far."""

    def poll(self) -> Exit | None:
        """How the process ended, or None while it may run; raises `JobLost` when that cannot be known."""

    def stop(self, grace: float) -> bool:
        """TERM, wait `grace` seconds, KILL; False when something cannot be killed."""


class Executor(Protocol):
    """Starts jobs on this host."""

    def start(self, job: Job) -> Handle:
        """Start a job; raises OSError when it cannot be started, `JobLost` when that is refused or nothing answers."""

    def find(self, job: Job) -> Handle | None:
        """Return what works in the folder of a job if it still runs, started by whomever; its command is not asked for.

        A process is known by its note; a container's whole output goes to the log.
        """
