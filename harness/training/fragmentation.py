"""Detects growing fragmentation: device memory that torch holds in ever more pieces which it cannot use. Pure."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from harness.base.wording import percent
from harness.evidence.files.app_files import Progress

WINDOW_SECONDS = 600.0
# Number of windows in a row whose unused share has to rise, each by at least LEAST_RISE.
RISING_WINDOWS = 4
LEAST_RISE = 0.02
# Smallest share of the held memory that no tensor uses; below it there is enough free memory in any case.
LEAST_SHARE = 0.3
LEAST_BYTES = 1 << 30


@dataclass
class _Rank:
    began: float
    shares: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)


class FragmentationWatch:
    """Watches the progress lines of one run for fragmentation."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def saw(self, line: Progress, now: float) -> str | None:
        """Take a progress line, seen at `now` in seconds; return why a new process should take over, or None.

        It should when the median share of unused memory, 1 - allocated / reserved, rose over four windows of ten
        minutes.
        """
        held, used = line.memory.device_reserved_bytes, line.memory.device_allocated_bytes
        if line.phase != "step" or held is None or used is None or held < LEAST_BYTES:
            return None
        rank = self._ranks.setdefault(line.rank, _Rank(now))
        if rank.shares and now - rank.began >= WINDOW_SECONDS:
            rank.medians.append(median(rank.shares))
            rank.began, rank.shares = now, []
            if why := _keeps_growing(rank.medians):
                return f"rank {line.rank}: {why}"
        rank.shares.append(1 - used / held)
        return None


def _keeps_growing(medians: list[float]) -> str | None:
    last = medians[-RISING_WINDOWS:]
    rises = all(later - earlier >= LEAST_RISE for earlier, later in pairwise(last))
    if len(last) < RISING_WINDOWS or not rises or last[-1] < LEAST_SHARE:
        return None
    minutes = WINDOW_SECONDS * RISING_WINDOWS / 60
    rise = f"{percent(last[0])} to {percent(last[-1])}"
    return f"unused pieces rose from {rise} of the memory held within {minutes:.0f} min"
