"""How long it took to find a fault."""

import time
from pathlib import Path

from harness.evidence.progress import ProgressReader


def last_progress(folder: Path) -> float | None:
    """When the last rank told of progress, by the monotonic clock."""
    return max((line.monotonic for line in ProgressReader(folder).new()), default=None)


def seconds_to_find(folder: Path, fault: float) -> float:
    """Seconds from `fault` until evidence began to be collected; where none was, until now."""
    now = time.monotonic()
    since_epoch = time.time() - now
    collected = [file.stat().st_mtime - since_epoch for file in (folder / "failure").glob("*")]
    return max(0.0, min([now, *collected]) - fault)
