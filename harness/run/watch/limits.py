"""How long a rank may stall, learned from earlier runs, and which ranks stall for longer. The caller gives the time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.evidence.app_files import Phase, Progress
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.run_files import Intent
from harness.evidence.step_position import WAITING, Position

# Seconds without an advance until enough is known. Loose on purpose: cold disks and kernel compilation look like hangs.
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
# The least once enough runs are known. A disk may be slow or cold for once, which those runs need not have seen.
KNOWN_LIMITS: Mapping[Phase, float] = {
    "import": 60,
    "init": 60,
    "data": 120,
    "features": 120,
    "first-step": 60,
    "step": 15,
    "validate": 60,
    "checkpoint": 120,
    "teardown": 60,
}
ENOUGH_RUNS = 5
# The newest tell best what this machine is like now.
RUNS = 20
# How much longer than ever before something may take.
FACTOR = 5.0
# A rank that waits for another has not stalled longer than that one, but for the second between two lines of each.
JITTER_SECONDS = 3.0

PositionOf = Callable[[int], Position | None]


@dataclass(frozen=True)
class Limits:
    """Seconds without an advance after which a rank is suspected to hang.

    `phases`: by phase. `steady_step`: in phase `step` once steps are steady, which is at once, or with
    `steady_after_validation` after the first validation: the short last batch of the first epoch has shapes of its own,
    for which a GPU's kernels are compiled.
    """

    phases: Mapping[Phase, float]
    steady_step: float
    steady_after_validation: bool = False

    @classmethod
    def fixed(cls, phases: Mapping[Phase, float]) -> "Limits":
        """Return limits that are the same for every step."""
        return cls(phases, phases["step"])


def limits_of(history: Sequence[Mapping[Phase, float]], device: Literal["cpu", "cuda"]) -> Limits:
    """Return limits from what is known: the longest stalls, by phase, of completed runs of the same kind.

    They are max(floor, 5 x the longest); the floors are loose until five runs are known.
    """
    enough = len(history) >= ENOUGH_RUNS
    floors = KNOWN_LIMITS if enough else LIMITS
    longest = {phase: max((run.get(phase, 0.0) for run in history), default=0.0) for phase in floors}
    return Limits(
        {phase: max(floor, FACTOR * longest[phase]) for phase, floor in floors.items()},
        max(KNOWN_LIMITS["step"], FACTOR * longest["step"]),
        steady_after_validation=device == "cuda" and not enough,
    )


def known_stalls(results: Results, intent: Intent) -> list[Mapping[Phase, float]]:
    """Return the longest stalls, by phase, of the newest runs with the same identity of evidence that completed.

    Raises:
        UserError: when index or records cannot be read.
    """
    wanted = (intent.environment_hash, intent.workload_hash, intent.host.kind, intent.executor)
    same = [
        row.run_id
        for row in Index(results).rows()
        if (row.environment_hash, row.workload_hash, row.host_kind, row.executor) == wanted
        and row.outcome == "completed"
        and row.injected_fault is None
        # How long it takes here, no other machine can tell.
        and not row.imported
    ]
    records = (results.record(run_id) for run_id in same[-RUNS:])
    return [record.longest_stall for record in records if record and record.longest_stall]


@dataclass(frozen=True)
class RankStall:
    """A rank that does not advance: since `idle` seconds, where `limit` are allowed.

    After `cap` seconds it hangs, whatever else there is to be seen of it.
    """

    rank: int
    phase: Phase
    done: int
    idle: float
    limit: float

    @property
    def cap(self) -> float:
        """Longer than any limit of this phase that is not learned."""
        return max(LIMITS[self.phase], 2 * self.limit)


@dataclass(frozen=True)
class _Rank:
    """The place of a rank, and since when it is there.

    `fresh`: no step was made since it came back to stepping from something else.
    """

    phase: Phase
    done: int
    since: float
    fresh: bool = False
    validated: bool = False


class Watchdog:
    """Watches the ranks of one process group from the moment it was started."""

    def __init__(self, now: float, limits: Limits) -> None:
        self._limits = limits
        self._longest: dict[Phase, float] = {}
        # The same of what is trained now: a second model's steps and kernels are not those of the first.
        self._known: dict[Phase, float] = {}
        # Before its first line a process is importing.
        self._ranks: dict[int, _Rank] = {0: _Rank("import", 0, now)}

    def saw(self, line: Progress, now: float) -> None:
        """Take note of a progress line; only an advance counts."""
        before = self._ranks.get(line.rank)
        if before is None:
            self._ranks[line.rank] = _Rank(line.phase, line.done, now)
        elif (before.phase, before.done) != (line.phase, line.done):
            self._note(before, now)
            another_model = line.phase == "first-step" and before.phase != "first-step"
            if another_model:
                self._known.pop("step", None)
                self._known.pop("first-step", None)
            # Loader workers that make the first batch may be starting.
            fresh = line.phase == "step" and before.phase not in ("step", "first-step")
            validated = line.phase == "validate" or (before.validated and not another_model)
            self._ranks[line.rank] = _Rank(line.phase, line.done, now, fresh, validated)

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks that are known."""
        return frozenset(self._ranks)

    def longest_stall(self, now: float) -> dict[Phase, float]:
        """Return the longest time without an advance so far, by phase; seconds.

        What passes before the first step of a later epoch counts as phase `first-step`.
        """
        told = dict(self._longest)
        for rank in self._ranks.values():
            phase = _kind(rank)
            told[phase] = max(told.get(phase, 0.0), now - rank.since)
        return told

    def suspects(self, now: float, position_of: PositionOf = lambda _: None) -> tuple[RankStall, ...]:
        """Return the ranks that stall for too long, where no rank that may still advance could be the reason."""
        stalled = self._all_stalls(now, position_of)
        late = [one for one in stalled if one.idle > one.limit]
        patient = [one for one in stalled if one.idle <= one.limit and one.phase != "teardown"]
        return tuple(one for one in late if not any(_may_wait_for(one, other, position_of) for other in patient))

    def stalled(self, now: float, position_of: PositionOf = lambda _: None) -> tuple[RankStall, ...]:
        """Return the suspects, and the ranks that may be waiting for them."""
        least = min((one.idle for one in self.suspects(now, position_of)), default=math.inf)
        return tuple(one for one in self._all_stalls(now, position_of) if one.idle > least / 2)

    def at_work(self, now: float, position_of: PositionOf = lambda _: None) -> tuple[RankStall, ...]:
        """Return every rank that is not through, with its time without an advance; when all are through, all."""
        return tuple(one for one in self._all_stalls(now, position_of) if one.idle >= 0)

    def _all_stalls(self, now: float, position_of: PositionOf) -> list[RankStall]:
        idle = {rank: now - since for rank, since in self._since().items()}
        return [
            RankStall(rank, seen.phase, seen.done, idle[rank], self._limit(rank, seen, idle[rank], position_of))
            for rank, seen in sorted(self._ranks.items())
        ]

    def _since(self) -> Mapping[int, float]:
        """Return when each rank that is not through advanced; when all are, since when they could have ended."""
        at_work = {rank: seen.since for rank, seen in self._ranks.items() if seen.phase != "teardown"}
        last = max(seen.since for seen in self._ranks.values())
        return {rank: at_work.get(rank, math.inf if at_work else last) for rank in self._ranks}

    def _limit(self, number: int, rank: _Rank, idle: float, position_of: PositionOf) -> float:
        if rank.fresh and idle > self._limits.steady_step and _has_its_batch(rank, position_of(number)):
            rank = replace(rank, fresh=False)
        known = self._known.get(_kind(rank))
        if rank.phase != "step" or (rank.fresh and known is None):
            return max(self._limits.phases[_kind(rank)], FACTOR * (known or 0.0))
        steady = rank.validated or not self._limits.steady_after_validation
        floor = self._limits.steady_step if steady else self._limits.phases["step"]
        # Before the second step the first is all there is to go by.
        longest = self._known.get("first-step", 0.0) if known is None else known
        return max(floor, FACTOR * longest)

    def _note(self, rank: _Rank, now: float) -> None:
        phase = _kind(rank)
        for longest in (self._longest, self._known):
            longest[phase] = max(longest.get(phase, 0.0), now - rank.since)


def _may_wait_for(one: RankStall, other: RankStall, position_of: PositionOf) -> bool:
    """Tell whether the other has stalled for as long, or has come no farther.

    The latter is how a rank is that has just written a checkpoint for which the others wait.
    """
    if other.idle > one.idle - _jitter(one):
        return True
    position, others = position_of(one.rank), position_of(other.rank)
    if position and others and position.order != others.order:
        return others.order < position.order
    return other.phase == one.phase and other.done <= one.done


def _jitter(one: RankStall) -> float:
    return min(JITTER_SECONDS, one.idle / 2)


def _kind(rank: _Rank) -> Phase:
    return "first-step" if rank.fresh else rank.phase


def _has_its_batch(rank: _Rank, position: Position | None) -> bool:
    """Tell whether the rank is past waiting for the first batch since it came back to stepping."""
    if position is None:
        return False
    # Outside a step its number is that of the last one that was made.
    return position.step > rank.done + 1 or (position.step == rank.done + 1 and position.stage != WAITING)
