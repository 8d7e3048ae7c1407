"""Reports why runs wait on a scheduler, and which of its nodes take no jobs while nothing runs."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.base.durations import span
from harness.base.wording import many
from harness.campaign.bench.dispatch import JobSeen

# Seconds between two questions about the nodes, while nothing runs.
NODES_SECONDS = 60.0
# Seconds without a run after which a line of its own says so; the line is repeated when that time has doubled.
SAID_SECONDS = 300.0
HELP = "`sinfo --list-reasons` says more, and `scontrol update NodeName=NODE State=RESUME` has a node take jobs again"


@dataclass
class Waiting:
    """The state of runs that wait, and of the nodes while none runs. Times are on the monotonic clock.

    `away` are the nodes that take no jobs, each with the reason.
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
        """Note how many runs are under way, and the jobs of those that wait."""
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
        """Return whether to ask about the nodes now: nothing runs, for a long time or not only for other jobs."""
        if self._since is None or not (self.reasons or self.seconds >= SAID_SECONDS):
            return False
        return self._asked is None or time.monotonic() - self._asked >= NODES_SECONDS

    def saw_nodes(self, away: Mapping[str, str] | None) -> None:
        """Note the nodes that take no jobs; None if the scheduler did not answer."""
        self._asked = time.monotonic()
        self.away = away or {}

    @property
    def in_words(self) -> str:
        """How many jobs run and how many wait, and why."""
        text = f"{many(self.running, 'job runs', 'jobs run')}, {many(self.waiting, 'waits', 'wait')}"
        if self.reasons:
            text += f": {', '.join(f'{count} for {why}' for why, count in sorted(self.reasons.items()))}"
        return f"{text}; {self.nodes_in_words}" if self.away else text

    @property
    def nodes_in_words(self) -> str:
        """The nodes that take no jobs, and why."""
        return ", ".join(f"{node} {why}" for node, why in sorted(self.away.items()))

    def step(self) -> str | None:
        """Return the text to show; None if it is shown already."""
        now = (self.running, self.waiting, frozenset(self.reasons), self.nodes_in_words)
        if now == self._shown or not self.running + self.waiting:
            return None
        self._shown = now
        return self.in_words

    def line(self) -> str | None:
        """Return the line to print if nothing has run for a while; None if no line is due."""
        if self.seconds < max(SAID_SECONDS, self._said):
            return None
        self._said = 2 * self.seconds
        help_ = f"; {HELP}" if self.away else "; `squeue --me --long` says more"
        return f"nothing has run for {span(self.seconds)}: {self.in_words}{help_}; still waiting"
