"""Detects that the memory of a device is cut more and more into pieces that torch holds and cannot use. Pure."""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from harness.base.wording import percent
from harness.evidence.files.app_files import Progress

WINDOW_SECONDS = 600.0
# In a row, each with more of it than the one before.
RISING_WINDOWS = 4
LEAST_RISE = 0.02
# Of memory held, the share that no tensor is in. Below, there is enough room left whatever the pieces are like.
LEAST_SHARE = 0.3
LEAST_BYTES = 1 << 30


@dataclass
class _Rank:
    began: float
    shares: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)


class FragmentationWatch:
    """Takes the progress lines of one run."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def saw(self, line: Progress) -> str | None:
        """Take a progress line; return why it is time for a fresh process, None while it is not.

        That is when the median share of unused memory, 1 - allocated / reserved, rose in four windows of ten minutes.
        """
        held, used = line.memory.device_reserved_bytes, line.memory.device_allocated_bytes
        if line.phase != "step" or held is None or used is None or held < LEAST_BYTES:
            return None
        rank = self._ranks.setdefault(line.rank, _Rank(line.monotonic))
        if rank.shares and line.monotonic - rank.began >= WINDOW_SECONDS:
            rank.medians.append(median(rank.shares))
            rank.began, rank.shares = line.monotonic, []
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
