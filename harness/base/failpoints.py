"""Named points at which the harness can be made to die, to show that nothing is lost there."""

import os
import signal
from collections import Counter

VARIABLE = "MATRIX_KILL_AT"
POINTS = (
    "campaign-begins",
    "campaign-begun",
    "campaign-done",
    "gpus-locked",
    "gpus-noted",
    "gpus-released",
    "run-begins",
    "run-begun",
    "container-created",
    "job-started",
    "job-noted",
    "running",
    "record-begins",
    "record-written",
    "index-begins",
    "index-written",
    "index-rebuilt",
    "recovery-begins",
    "orphan-ended",
    "orphan-recorded",
    "recovery-done",
    "file-opened",
    "file-written",
    "file-synced",
    "file-renamed",
)

_times: Counter[str] = Counter()


def reached(point: str) -> None:
    """Die at once, as by `kill -9`, where `MATRIX_KILL_AT` is this point, or `point@3` and this is the third time."""
    wanted, _, time = os.environ.get(VARIABLE, "").partition("@")
    if wanted == point:
        _times[point] += 1
        if _times[point] == int(time or 1):
            os.kill(os.getpid(), signal.SIGKILL)
