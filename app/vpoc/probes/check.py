"""Checks and their results."""

from dataclasses import dataclass

PASSED = "passed"
FAILED = "failed"
HUNG = "hung"
CRASHED = "crashed"
WRONG_RESULT = "wrong-result"
SKIPPED = "skipped"
OUTCOMES = (PASSED, FAILED, HUNG, CRASHED, WRONG_RESULT, SKIPPED)
NO_DEVICE = 3
"""Exit status of a check, and of the command, when the device that was asked for is not there."""


@dataclass(frozen=True)
class Check:
    """One check.

    `function` is `module:function`, called with a `vpoc.probes.site.Site` and `arguments` in a process of its own that
    may take `limit_s` seconds, import of torch included. When an `essential` check breaks, no later one can work.
    """

    name: str
    shows: str
    limit_s: float
    function: str
    arguments: tuple[str, ...] = ()
    essential: bool = False


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    `outcome` is one of `OUTCOMES`; `detail` one line; `stderr` the last lines that its processes wrote there, with the
    stacks of a check that hung. `exit_code` or `signal` (its name) say how the process ended; both are None when it was
    not started or could not be ended. `killable`: whether all its processes are gone.
    """

    check: str
    outcome: str
    seconds: float
    limit_s: float
    detail: str
    stderr: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    killable: bool = True

    @property
    def broken(self) -> bool:
        """True when the stack does not do what this check asks."""
        return self.outcome not in (PASSED, SKIPPED)
