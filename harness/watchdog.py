"""Progress -> alive or hung. Pure: the caller gives the time."""

import math
from collections.abc import Mapping

from harness.contracts import Phase, Progress

# Seconds without any advance. Loose on purpose: cold disks and kernel compilation look like hangs.
LIMITS: Mapping[Phase, float] = {
    "import": 180,
    "init": 180,
    "data": 600,
    "features": 900,
    "first-step": 300,
    "step": 180,
    "validate": 300,
    "checkpoint": 300,
    "teardown": 180,
}


class Watchdog:
    """Watches the ranks of one process group from the moment it was started."""

    def __init__(self, now: float, limits: Mapping[Phase, float] = LIMITS) -> None:
        self._limits = limits
        # Before its first line a process is importing.
        self._seen: dict[int, tuple[Phase, int, float]] = {0: ("import", 0, now)}

    def saw(self, line: Progress, now: float) -> None:
        """Take note of a progress line; only an advance counts."""
        phase, done, _ = self._seen.get(line.rank, (None, None, now))
        if (phase, done) != (line.phase, line.done):
            self._seen[line.rank] = (line.phase, line.done, now)

    def stuck(self, now: float) -> str | None:
        """Which ranks stand still, one of them for longer than its phase allows, in words; None while all is well."""
        idle = {rank: now - since for rank, since in self._since().items()}
        if all(idle[rank] <= self._limits[phase] for rank, (phase, _, _) in self._seen.items()):
            return None
        # Ranks wait for one another and tell of themselves once a second, so the one that sleeps may have told last.
        standing = [
            (done, rank, phase) for rank, (phase, done, _) in self._seen.items() if idle[rank] > self._limits[phase] / 2
        ]
        return "; ".join(
            f"rank {rank} made no progress for {idle[rank]:.0f} s in phase {phase} at {done}"
            for done, rank, phase in sorted(standing)
        )

    def _since(self) -> Mapping[int, float]:
        """When each rank that is not through advanced; when all are, since when they could have ended."""
        at_work = {rank: since for rank, (phase, _, since) in self._seen.items() if phase != "teardown"}
        last = max(since for _, _, since in self._seen.values())
        return {rank: at_work.get(rank, math.inf if at_work else last) for rank in self._seen}
