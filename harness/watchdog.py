"""Progress -> alive or hung. Pure: the caller gives the time."""

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
        """Which rank has not advanced for longer than its phase allows, in words; None while all is well."""
        for rank, (phase, done, since) in self._seen.items():
            if now - since > self._limits[phase]:
                return f"rank {rank} made no progress for {now - since:.0f} s in phase {phase} at {done}"
        return None
