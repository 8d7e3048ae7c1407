"""Finds the ranks that stall for longer than they may. Pure: the caller gives the time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harness.evidence.app_reports.step_position import OUTSIDE, WAITING, Position
from harness.evidence.files.app_files import Phase, Progress, Wait
from harness.run.watch.limits import FACTOR, LIMITS, Limits

# A rank is suspected this many seconds before its limit, so that there are two samples of its stacks at the limit.
SUSPECT_EARLIER_SECONDS = 10.0
# A rank that waits for another may seem to have stalled for this many seconds longer than that one, because each rank
# writes only one line a second.
JITTER_SECONDS = 3.0

PositionOf = Callable[[int], Position | None]


@dataclass(frozen=True)
class RankStall:
    """A rank that has not advanced for `idle` seconds, of which `limit` are allowed.

    The rank is suspected shortly before its limit. After `cap` seconds it hangs, whatever its stacks show.
    """

    rank: int
    phase: Phase
    done: int
    idle: float
    limit: float

    @property
    def suspected(self) -> bool:
        """True where the rank is over its limit, or nearly."""
        return self.idle > self.limit - min(SUSPECT_EARLIER_SECONDS, self.limit / 3)

    @property
    def cap(self) -> float:
        """Seconds without an advance that are too long in any case: at least the loose limit of the phase."""
        return max(LIMITS[self.phase], 2 * self.limit)


@dataclass(frozen=True)
class _Rank:
    """The place of a rank, and since when the rank is there.

    `fresh`: whether it has made no step since it came back to stepping from another phase.
    `steps`: the number of steps of this model that it made in this process.
    `step`: the number of the last step that it reported, if any.
    `validated`: whether it has validated this model.
    """

    phase: Phase
    done: int
    since: float
    fresh: bool = False
    steps: int = 0
    step: int | None = None
    validated: bool = False

    @property
    def wait(self) -> Wait:
        """The phase that the rank waits to advance in; after a return to stepping, `first-step` or `resume`."""
        if not self.fresh:
            return self.phase
        return "resume" if self.steps else "first-step"


class Watchdog:
    """Watches the ranks of one process group from the moment it was started.

    `position_of` tells where in its step a rank is, where that is known.
    """

    def __init__(self, now: float, limits: Limits, position_of: PositionOf) -> None:
        self._limits = limits
        self._position_of = position_of
        self._longest: dict[Wait, float] = {}
        # The same for the model that is trained now: a second model has other steps and kernels than the first.
        self._known: dict[Wait, float] = {}
        # Before its first line a process imports modules.
        self._ranks: dict[int, _Rank] = {0: _Rank("import", 0, now)}

    def saw(self, line: Progress, now: float) -> None:
        """Note a progress line; only an advance counts."""
        before = self._ranks.get(line.rank)
        if before is None:
            self._ranks[line.rank] = _Rank(line.phase, line.done, now)
        elif (before.phase, before.done) != (line.phase, line.done):
            self._note(before, now)
            another_model = line.phase == "first-step" and before.phase != "first-step"
            if another_model:
                for wait in ("step", "first-step", "resume"):
                    self._known.pop(wait, None)
            # The loader workers that make the first batch may still be starting.
            fresh = line.phase == "step" and before.phase not in ("step", "first-step")
            steps, step = (0, None) if another_model else (before.steps, before.step)
            if line.phase in ("first-step", "step"):
                # Quick steps are not all reported: those of an epoch may show only in the first number after it.
                steps, step = steps + max(0, line.done - (line.done if step is None else step)), line.done
            validated = line.phase == "validate" or (before.validated and not another_model)
            self._ranks[line.rank] = _Rank(line.phase, line.done, now, fresh, steps, step, validated)

    def discount_unwatched(self, seconds: float) -> None:
        """Shorten every stall by `seconds`, because the run could not be watched for that time."""
        self._ranks = {rank: replace(seen, since=seen.since + seconds) for rank, seen in self._ranks.items()}

    @property
    def ranks(self) -> frozenset[int]:
        """All ranks that have reported progress, and rank 0."""
        return frozenset(self._ranks)

    def longest_stall(self, now: float) -> dict[Wait, float]:
        """Return the longest time without an advance so far, in seconds, by what the rank waited for."""
        told = dict(self._longest)
        for rank in self._ranks.values():
            told[rank.wait] = max(told.get(rank.wait, 0.0), now - rank.since)
        return told

    def suspects(self, now: float) -> tuple[RankStall, ...]:
        """Return the ranks over their limit, or nearly so, but not those that may wait for one that can advance."""
        return self._without_excuse(now, lambda one: one.suspected)

    def late(self, now: float) -> tuple[RankStall, ...]:
        """Return the suspects that are over their limit."""
        return self._without_excuse(now, lambda one: one.idle > one.limit)

    def stalled(self, now: float) -> tuple[RankStall, ...]:
        """Return the ranks that are over their limit, and those that may be waiting for them."""
        least = min((one.idle for one in self.late(now)), default=math.inf)
        return tuple(one for one in self._all_stalls(now) if one.idle > least / 2)

    def unfinished_ranks(self, now: float) -> tuple[RankStall, ...]:
        """Return every unfinished rank, with its time without an advance; all ranks once all have finished."""
        # The time is negative for a rank that advanced during a forgiven time.
        return tuple(one for one in self._all_stalls(now) if one.idle > -math.inf)

    def _all_stalls(self, now: float) -> list[RankStall]:
        idle = {rank: now - since for rank, since in self._since().items()}
        return [
            RankStall(rank, seen.phase, seen.done, idle[rank], self._limit(rank, seen, idle[rank]))
            for rank, seen in sorted(self._ranks.items())
        ]

    def _since(self) -> Mapping[int, float]:
        """Return when each unfinished rank last advanced; once all have finished, since when they could have ended."""
        unfinished = {rank: seen.since for rank, seen in self._ranks.items() if seen.phase != "teardown"}
        last = max(seen.since for seen in self._ranks.values())
        return {rank: unfinished.get(rank, math.inf if unfinished else last) for rank in self._ranks}

    def _limit(self, number: int, rank: _Rank, idle: float) -> float:
        if (
            rank.wait == "resume"
            and idle > self._limits.steady_step
            and _has_its_batch(rank, self._position_of(number))
        ):
            rank = replace(rank, fresh=False)
        waits, first = self._known, self._known.get("first-step", 0.0)
        if rank.wait == "resume":
            return max(self._limits.phases["resume"], FACTOR * max(waits.get("resume", 0.0), first))
        if rank.wait != "step":
            return max(self._limits.phases[rank.wait], FACTOR * waits.get(rank.wait, 0.0))
        validated = rank.validated or not self._limits.steady_after_validation
        enough = self._limits.steady_after
        steady = validated and (rank.steps >= enough or _steps_made(rank, self._position_of(number)) >= enough)
        floor = self._limits.steady_step if steady else self._limits.phases["step"]
        # Before the second step only the first one shows how long a step takes.
        return max(floor, FACTOR * waits.get("step", first))

    def _note(self, rank: _Rank, now: float) -> None:
        for longest in (self._longest, self._known):
            longest[rank.wait] = max(longest.get(rank.wait, 0.0), now - rank.since)

    def _without_excuse(self, now: float, is_late: Callable[[RankStall], bool]) -> tuple[RankStall, ...]:
        stalls = self._all_stalls(now)
        patient = [one for one in stalls if not is_late(one) and one.phase != "teardown"]
        late = (one for one in stalls if is_late(one))
        return tuple(one for one in late if not any(self._may_wait_for(one, other) for other in patient))

    def _may_wait_for(self, one: RankStall, other: RankStall) -> bool:
        """Return whether the other has stalled for as long, or has come no farther.

        The latter is how a rank is that has just written a checkpoint for which the others wait.
        """
        if other.idle > one.idle - _jitter(one):
            return True
        position, others = self._position_of(one.rank), self._position_of(other.rank)
        if position and others and position.order != others.order:
            return others.order < position.order
        return other.phase == one.phase and other.done <= one.done


def _jitter(one: RankStall) -> float:
    return min(JITTER_SECONDS, one.idle / 2)


def _steps_made(rank: _Rank, position: Position | None) -> int:
    """Return how many steps the rank made in this process, with those since its last line, which is up to 1 s old."""
    if position is None or rank.step is None:
        return rank.steps
    last = position.step - (position.stage != OUTSIDE)
    return rank.steps + max(0, last - rank.step)


def _has_its_batch(rank: _Rank, position: Position | None) -> bool:
    """Return whether the rank is past waiting for the first batch since it came back to stepping."""
    if position is None:
        return False
    # Outside a step, the position has the number of the last step that was made.
    return position.step > rank.done + 1 or (position.step == rank.done + 1 and position.stage != WAITING)
