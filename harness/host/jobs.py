"""The words for jobs of any scheduler."""

from collections.abc import Mapping
from typing import Literal

JobPhase = Literal["waits", "runs", "over"]
JobEnding = Literal["time-limit", "cancelled"]
"""The reason why a scheduler ends a job: the time limit, or a cancellation by a person or for a more urgent job."""
ENDINGS: Mapping[JobEnding, str] = {
    "time-limit": "the scheduler ended its job at the time limit",
    "cancelled": "the scheduler cancelled its job",
}
"""The same reasons in words."""

# Pattern for the name of a node, which is used in a job's script and in file names.
NODE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
