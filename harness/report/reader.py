"""The reader of a report: what is recommended, and how commands are typed, depends on who reads it, where and when."""

from dataclasses import dataclass

from harness.campaign.answered import NO_ANSWER, LastAnswer
from harness.report.invocation import AS_MADE, Invocation


@dataclass(frozen=True)
class Reader:
    """The reader of a report.

    `now`: the time of reading, seconds since 1970.
    `host_kind`: the kind of host that the recommended cell and the commands are for; None for all hosts.
    `invocation`: how the commands are typed there.
    `last`: the answer of the last campaign, with the command that continues one which has not ended, if there is one.
    """

    now: float
    host_kind: str | None = None
    invocation: Invocation = AS_MADE
    last: LastAnswer = NO_ANSWER
