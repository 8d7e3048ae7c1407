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
"""Exit status of a check, and of the command, when the requested device is not there."""


@dataclass(frozen=True)
class Check:
    """One check.

    `function`: `module:function`, called with a `vpoc.probes.site.Site` and `arguments` in a separate process.
    `limit_s`: the seconds that the process may take, including the import of torch.
    `essential`: whether no later check can work when this one breaks.
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

    `outcome`: one of `OUTCOMES`.
    `detail`: one line.
    `stderr`: the last lines that its processes wrote there, with the stacks of a check that hung.
    `exit_code`, `signal` (its name): how the process ended; both None if it was not started or could not be ended.
    `killable`: whether all its processes are gone.
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
        """Return whether the stack failed this check."""
        return self.outcome not in (PASSED, SKIPPED)
