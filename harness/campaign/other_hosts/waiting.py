"""Says why runs wait on a scheduler, and where nothing runs, which of its nodes take no jobs."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.base.durations import span
from harness.base.wording import many
from harness.campaign.bench.dispatch import JobSeen

# Nodes are asked for once in that time, while nothing runs.
NODES_SECONDS = 60.0
# After so long without a run it is said in a line of its own, and again when that time has doubled.
SAID_SECONDS = 300.0
HELP = "`sinfo --list-reasons` says more, and `scontrol update NodeName=NODE State=RESUME` has a node take jobs again"


@dataclass
class Waiting:
    """The state of runs that wait, and of nodes where none runs. Times are on the monotonic clock.

    `away` are the nodes that take no jobs, each with why.
    """

    running: int = 0
    waiting: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    away: Mapping[str, str] = field(default_factory=dict)
    _since: float | None = None
    _asked: float | None = None
    _said: float = 0.0
    _shown: tuple[object, ...] = ()

    def saw(self, running: int, waiting: Iterable[JobSeen]) -> None:
        """Take note of how many runs run, and of the jobs of those that wait."""
        jobs = list(waiting)
        self.running, self.waiting = running, len(jobs)
        self.reasons = Counter(job.why for job in jobs if job.why)
        if running or not jobs:
            self.away, self._since, self._asked, self._said = {}, None, None, 0.0
        elif self._since is None:
            self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds for which nothing has run while runs wait."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def wants_nodes(self) -> bool:
        """Return whether nodes are to be asked for now: nothing runs, and that is not for others alone, or lasts."""
        if self._since is None or not (self.reasons or self.seconds >= SAID_SECONDS):
            return False
        return self._asked is None or time.monotonic() - self._asked >= NODES_SECONDS

    def saw_nodes(self, away: Mapping[str, str] | None) -> None:
        """Take note of the nodes that take no jobs; None where the scheduler did not answer."""
        self._asked = time.monotonic()
        self.away = away or {}

    @property
    def in_words(self) -> str:
        """How many runs run and wait, and why."""
        text = f"{many(self.running, 'job runs', 'jobs run')}, {many(self.waiting, 'waits', 'wait')}"
        if self.reasons:
            text += f": {', '.join(f'{count} for {why}' for why, count in sorted(self.reasons.items()))}"
        return f"{text}; {self.nodes_in_words}" if self.away else text

    @property
    def nodes_in_words(self) -> str:
        """The nodes that take no jobs, and why."""
        return ", ".join(f"{node} {why}" for node, why in sorted(self.away.items()))

    def step(self) -> str | None:
        """Return what is to be shown; None where that is shown already."""
        now = (self.running, self.waiting, frozenset(self.reasons), self.nodes_in_words)
        if now == self._shown or not self.running + self.waiting:
            return None
        self._shown = now
        return self.in_words

    def line(self) -> str | None:
        """Return the line that is due where nothing has run for a while; None where none is."""
        if self.seconds < max(SAID_SECONDS, self._said):
            return None
        self._said = 2 * self.seconds
        help_ = f"; {HELP}" if self.away else "; `squeue --me --long` says more"
        return f"nothing has run for {span(self.seconds)}: {self.in_words}{help_}; it is waited for"
