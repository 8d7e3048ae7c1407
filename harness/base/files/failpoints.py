"""Named points at which the harness can be killed on purpose, to show that nothing is lost there."""

import os
import signal
from collections import Counter

VARIABLE = "MATRIX_KILL_AT"
POINTS = (
    # Around a campaign.
    "campaign-begins",
    "campaign-begun",
    "campaign-done",
    # A GPU is locked, its lock names the run, the lock is released.
    "gpus-locked",
    "gpus-noted",
    "gpus-released",
    # The intent is written, the run folder has its name.
    "run-begins",
    "run-begun",
    # A container or process is created, is started, its identity is written.
    "container-created",
    "job-started",
    "job-noted",
    # A line of progress was read.
    "running",
    # Around the record.
    "record-begins",
    "record-written",
    # Around the index.
    "index-begins",
    "index-written",
    "index-rebuilt",
    # In a recovery.
    "recovery-begins",
    "orphan-ended",
    "orphan-recorded",
    "recovery-done",
    # In every durable write.
    "file-opened",
    "file-written",
    "file-synced",
    "file-renamed",
)

_times: Counter[str] = Counter()


def reached(point: str) -> None:
    """Kill this process with SIGKILL if `MATRIX_KILL_AT` is this point, or `point@3` and this is the third time."""
    wanted, _, time = os.environ.get(VARIABLE, "").partition("@")
    if wanted == point:
        _times[point] += 1
        if _times[point] == int(time or 1):
            os.kill(os.getpid(), signal.SIGKILL)
