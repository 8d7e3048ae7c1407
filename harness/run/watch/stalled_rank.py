"""Distinguishes the rank that is stuck from the ranks that only wait for it. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.evidence.app_reports.python_stacks import LOADER_WORKER, CallStack, Frame
from harness.evidence.app_reports.step_position import Position
from harness.evidence.files.work_folder import MOST_RANKS
from harness.host.processes.run_processes import STATES, RunProcess
from harness.run.watch.python_stacks import StackSample, innermost_own_frame, may_wait_for_others
from harness.run.watch.watchdog import RankStall

STEPPING = ("first-step", "step")


@dataclass(frozen=True)
class Sight:
    """Everything seen of a rank. `stalled`: None where the rank never reported any progress."""

    rank: int
    stalled: RankStall | None
    position: Position | None
    stack: CallStack
    processes: tuple[RunProcess, ...]

    @property
    def blocked(self) -> RunProcess | None:
        """A process of the rank that the kernel does not run: stopped, or in an uninterruptible wait."""
        return next((process for process in self.processes if process.state in STATES), None)

    @property
    def place(self) -> tuple[Position | None, Frame | None]:
        """The rank's position in a step and its innermost own frame."""
        return self.position, innermost_own_frame(self.stack)


def describe_hang(
    stalled: Sequence[RankStall], told: Collection[int], sample: StackSample, ranks: int = MOST_RANKS
) -> str:
    """Return in words which rank is stuck, since when and where; the ranks that wait come after it.

    `told`: all ranks that ever reported progress, and rank 0, which the watchdog knows from the start.
    `ranks`: how many there are; a process may say that it is of any other.
    """
    sights = _sights(stalled, told, sample, ranks)
    stuck = stuck_ranks(sights)
    if len(stuck) == 1:
        waiting = [f"rank {sight.rank} waits{_where(sight)}" for sight in sights if sight not in stuck]
        return "; ".join([f"rank {stuck[0].rank} {_idle(stuck[0])}{_where(stuck[0])}", *waiting])
    all_of_them = [f"rank {sight.rank} {_idle(sight)}{_where(sight)}" for sight in sights]
    same = "they are at the same place; " if len({sight.place for sight in stuck}) == 1 else ""
    which = " and ".join(str(sight.rank) for sight in stuck)
    return f"{'; '.join(all_of_them)}: {same}which of ranks {which} is stuck cannot be determined"


def stuck_ranks(sights: Sequence[Sight]) -> tuple[Sight, ...]:
    """Return the rank that is behind the others; several ranks where nothing tells them apart."""
    behind = [sight for sight in sights if sight.stalled is None]
    if behind:
        return tuple(behind)
    left = list(sights)
    if left and all(sight.position for sight in left):
        least = min(sight.position.order for sight in left if sight.position)
        left = [sight for sight in left if sight.position and sight.position.order == least]
    left = [sight for sight in left if not may_wait_for_others(sight.stack)] or left
    return tuple([sight for sight in left if sight.blocked] or left)


def _sights(stalled: Sequence[RankStall], told: Collection[int], sample: StackSample, ranks: int) -> list[Sight]:
    known = {one.rank: one for one in stalled}
    of_processes = {process.rank for process in sample.processes if process.rank is not None}
    seen = {rank for rank in (*of_processes, *sample.positions) if rank < ranks}
    in_order = sorted(known.keys() | (seen - set(told)))
    # The process of a single rank need not say which it is.
    alone = len(seen | set(told)) == 1
    return [_sight(rank, known.get(rank), sample, alone=alone) for rank in in_order]


def _sight(rank: int, stalled: RankStall | None, sample: StackSample, *, alone: bool) -> Sight:
    stacks = sample.of_rank(rank)
    named = {rank, None} if alone else {rank}
    pids = {one.pid for one in stacks}
    processes = tuple(process for process in sample.processes if process.rank in named or process.pid in pids)
    # Where the rank itself gave no stack, those of its loader's workers, which always wait, do not stand for it.
    own = (one.main for one in stacks if not any(frame.file.endswith(LOADER_WORKER) for frame in one.main))
    return Sight(rank, stalled, sample.positions.get(rank), next(own, ()), processes)


def _idle(sight: Sight) -> str:
    if sight.stalled is None:
        return "never reported any progress"
    return f"made no progress for {sight.stalled.idle:.0f} s in phase {sight.stalled.phase} at {_at(sight)}"


def _at(sight: Sight) -> str:
    stepping = sight.stalled is not None and sight.stalled.phase in STEPPING
    if sight.position and sight.position.step and stepping:
        return f"step {sight.position.step}"
    return str(sight.stalled.done) if sight.stalled else ""


def _where(sight: Sight) -> str:
    position, frame = sight.place
    stage = f", {position.words}" if position and position.words else ""
    state = f", process {sight.blocked.pid} is {STATES[sight.blocked.state]}" if sight.blocked else ""
    return f"{stage}{f' ({frame})' if frame else ''}{state}"
