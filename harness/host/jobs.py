"""The words for jobs of a scheduler, whichever it is."""

from collections.abc import Mapping
from typing import Literal

JobPhase = Literal["waits", "runs", "over"]
JobEnding = Literal["time-limit", "cancelled"]
"""The reason for which a scheduler ends a job: its time limit; or a person, or another job that comes first."""
ENDINGS: Mapping[JobEnding, str] = {
    "time-limit": "the scheduler ended its job at the time limit",
    "cancelled": "the scheduler cancelled its job",
}
"""The same in words."""

# Of a node, which becomes a word of a job's script and part of a file's name.
NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
