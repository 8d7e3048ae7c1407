"""Which run of a campaign in stages is next, by all that the records show, or why it ends. Pure.

Depth first: a stack goes through the stages that explore, and what came through them with the strategy that is wanted
most is run until it is shown to be good. What failed once, and what uses the GPUs in a less wanted way, stays in hand:
it is run for hours when nothing else is left to explore, or when the time that is left is just enough for that. Once
every stack had its turn, and nothing is good on all GPUs, further presets are tried, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, exploring, of_winner
from harness.matrix.two_gpus import always_on_two, in_turn
from harness.matrix.workloads import Workload
from harness.search.stages.contenders import Contender, Contenders
from harness.search.stages.exploration import Depth, Explored, Explorer
from harness.search.stages.gpus import bad_gpus
from harness.search.stages.runs import SeenRuns, Setting, StageHost, StageRun

StageEndReason = Literal["good", "none", "out-of-time", "gpu-lost"]
# What is reckoned with beyond what a claim takes without a failure.
SLACK_SECONDS = 3000.0
# What failed so often is run no more.
MOST_FAILURES = 4
# Once so many came through the stages and failed later, the next one may as well: every stack has its turn first.
SEVERAL_FAILED = 2


@dataclass(frozen=True)
class StageEnd:
    """Why a campaign ends, what it found, and what it left: stacks with a stage that was not tried to the end.

    `best`: the contender that is good, otherwise the nearest one; None where nothing came through. `bad_gpus` fail what
    others pass, `lost_gpus` are unhealthy: these may take no runs until something is done about them.
    """

    why: StageEndReason
    best: Contender | None
    contenders: tuple[Contender, ...]
    explored: tuple[Explored, ...]
    untried: tuple[str, ...]
    bad_gpus: tuple[int, ...] = ()
    lost_gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageSearch:
    """Decides the runs of a campaign in stages. `cells` are those of the selection by stack, in its order."""

    matrix: Matrix
    cells: Mapping[str, Sequence[Cell]]
    host: StageHost

    def next(self, seen: SeenRuns, time_left: float | None) -> StageRun | StageEnd:
        """Return the next run, or why there is none. `time_left` in seconds, None without a budget."""
        return _Look(self, seen, float("inf") if time_left is None else time_left).next()

    def end_early(self, seen: SeenRuns) -> StageEnd:
        """Return how a campaign ends before its time, since a GPU that it is about is lost."""
        look = _Look(self, seen, float("inf"))
        look.explore()
        return look.end("gpu-lost", look.contenders())

    def seconds_of_next(self, seen: SeenRuns) -> float | None:
        """Return what the next run takes with the setup of its stack, had it all the time; None where there is none."""
        look = _Look(self, seen, float("inf"))
        following = look.next()
        return look.cost(following) if isinstance(following, StageRun) else None

    def to_prepare(self, run: StageRun, seen: SeenRuns) -> str | None:
        """Return the stack that is made while a run goes on: the next one, once something trained on one GPU.

        Before that answer nothing is downloaded that it may not need.
        """
        smoke = {stage.workload for stage in exploring(self.matrix.stages)[:1]}
        if not any(one.passed and one.row.workload not in smoke for one in seen.runs):
            return None
        stack = run.cell.stack.name
        following = self.order[self.order.index(stack) + 1 :][:1] if stack in self.order else []
        return next((one for one in following if one in self.host.setup_seconds), None)

    @property
    def order(self) -> list[str]:
        """Return the stacks in turn: without PCIe atomics last those whose collectives need them."""
        return in_turn(self.matrix, self.cells, atomics=self.host.atomics, several=self.host.can_use_all)


@dataclass
class _Look:
    """One look at the records, and the decision by it. `new_to`: stages that a stack was the first to come to."""

    search: StageSearch
    seen: SeenRuns
    time_left: float
    explored: dict[str, Explored] = field(default_factory=dict)
    new_to: dict[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.matrix = self.search.matrix
        self.bad_gpus = bad_gpus(self.seen)
        healthy = tuple(gpu for gpu in self.search.host.healthy if gpu not in self.bad_gpus)
        self.host = replace(self.search.host, healthy=healthy or self.search.host.healthy)
        self.stages = self.matrix.stages
        self.explorer = Explorer(self.matrix, self.host, self.seen)
        self.makes = Contenders(self.matrix, self.host, self.seen)

    def next(self) -> StageRun | StageEnd:
        """Return the next run, or the end."""
        following, depth = self.explore()
        contenders = self.contenders()
        good = next((one for one in contenders if one.is_good), None)
        if good and good.rank == 0:
            return self._of_winner(good) or self.end("good", contenders)
        # What would use the GPUs in a less wanted way than one that is good already has nothing to show.
        open_ = [one for one in contenders if one.failures < MOST_FAILURES and (not good or one.rank < good.rank)]
        sound = sorted((one for one in open_ if one.is_sound), key=lambda one: (one.rank, one.seconds_needed))
        for one in self._in_turn(following, depth, sound, open_):
            if run := one if isinstance(one, StageRun) else self._endure(one):
                return run
        why = self._why(open_, following)
        if good:
            return self._of_winner(good) or self.end("good" if self._is_on_several(good) else why, contenders)
        return self.end(why, contenders)

    def contenders(self) -> list[Contender]:
        """Return what came through, the most wanted first, of those what failed least."""
        return self.makes.of(self.explored.values())

    def _is_on_several(self, one: Contender) -> bool:
        return one.rank < len(self.makes.ranks) - 1

    def _in_turn(
        self, following: StageRun | None, depth: Depth, sound: Sequence[Contender], open_: Sequence[Contender]
    ) -> Iterator[StageRun | Contender]:
        """Yield what is to be run, the most promising first; `following` explores, and `depth` is how deep that is.

        What is wanted most and has not failed, unless several such failed when they were run for hours; a stack that
        had no turn; what uses all GPUs in another way; all that is still untried on all GPUs of stacks that had their
        turn; what failed there, but may be good in time; further presets; then what is left, what failed least first.
        """
        in_time = [one for one in open_ if one.seconds_needed <= self.time_left]
        if sum(one.rank == 0 and one.totals.failures > 0 for one in open_) < SEVERAL_FAILED:
            yield from (one for one in sound if one.rank == 0)
        if following and depth == Depth.TURN and self._is_affordable(following, sound, first_turn=True):
            yield following
        yield from (one for one in sound if len(one.gpus) > 1)
        if following and depth < Depth.REMEDIES and self._is_affordable(following, sound):
            yield following
        yield from (one for one in in_time if len(one.gpus) > 1)
        if following and self._is_affordable(following, sound):
            yield following
        yield from in_time
        yield from (one for one in open_ if one.seconds_needed > self.time_left)
        if following and self.cost(following) <= self.time_left:
            yield following

    def _why(self, open_: Sequence[Contender], following: StageRun | None) -> StageEndReason:
        """Return `none` where every stack had its turn, and nothing is left that only lacks the time.

        What failed once may still be shown to be good: it takes longer.
        """
        several = len(self.makes.ranks) > 1
        lacking = [one for one in open_ if one.gpus and (len(one.gpus) > 1 or not several)]
        return "out-of-time" if lacking or following or self._untried() else "none"

    def explore(self) -> tuple[StageRun | None, Depth]:
        """Return the run that shows more of the first stack that is not known in full, and how deep that is.

        Every stack is known to a depth before one is explored deeper. Where something is good on all GPUs no further
        presets are tried.
        """
        for depth in Depth:
            if depth == Depth.REMEDIES and any(one.is_good and self._is_on_several(one) for one in self.contenders()):
                break
            if run := self._explore_to(depth):
                return run, depth
        return None, Depth.CHANGES

    def _explore_to(self, depth: Depth) -> StageRun | None:
        stacks = self.search.order
        last = self.explorer.stages[-1].name
        new = frozenset(stage.name for stage in self.explorer.stages)
        if depth >= Depth.REMEDIES:
            # What came through all stages needs no further preset; the further another came, the more it promises.
            stacks = [stack for stack in stacks if last not in self.explored[stack].survivors]
            stacks.sort(key=lambda stack: -len(self.explored[stack].survivors))
        for stack in stacks:
            explored = self.explorer.explore(stack, self.search.cells[stack], depth, self.new_to.setdefault(stack, new))
            self.explored[stack] = explored
            if explored.next:
                return explored.next
            new -= {name for name, tried in explored.tried.items() if tried}
        return None

    def _endure(self, one: Contender) -> StageRun | None:
        """Return the next long run of a contender; a short one where only starts are missing, or no long one fits."""
        long = self.makes.long(one.setting)
        if not one.gpus or long is None or self.makes.endurance is None:
            return None
        short = one.setting.workload(self.matrix.workloads[one.stage.workload or ""])
        devices = len(one.gpus)
        missing = f"{one.missing.in_words} to `{self.makes.endurance.until}`"
        for workload, minutes, wanted in (
            (long, self.makes.endurance.minutes, one.long_runs),
            (short, one.stage.minutes, max(1, one.missing.starts)),
        ):
            made = (run for gpus in one.lanes for run in self.seen.of_run(one.setting, workload, gpus))
            if any(run.was_refused for run in made):
                continue
            if wanted and self.seen.seconds_of(workload, devices, minutes) <= self.time_left:
                why = f"{self.makes.endurance.name}: {missing}"
                first, *others = (
                    StageRun(
                        self.makes.endurance.name,
                        one.setting,
                        workload,
                        gpus,
                        len(self.seen.of_run(one.setting, workload, gpus)) + 1,
                        why,
                    )
                    for gpus in one.lanes[:wanted]
                )
                return replace(first, beside=tuple(others))
        return None

    def _of_winner(self, winner: Contender) -> StageRun | None:
        """Return the next run of what is good: the stages of the winner, once each, then other strategies beside it."""
        for stage in of_winner(self.stages):
            workload = self.matrix.workloads[stage.workload or ""]
            if run := self._once(stage, winner.setting, winner.setting.workload(workload), winner.gpus):
                return run
        for strategy in winner.stage.beside:
            setting = replace(winner.setting, strategy=strategy)
            workload = setting.workload(self.matrix.workloads[winner.stage.workload or ""])
            if run := self._once(winner.stage, setting, workload, winner.gpus):
                return run
        return None

    def _once(
        self, stage: CampaignStage, setting: Setting, workload: Workload, gpus: tuple[int, ...]
    ) -> StageRun | None:
        made = self.seen.of_run(setting, workload, gpus)
        takes = self.seen.seconds_of(workload, len(gpus), stage.minutes)
        if not gpus or any(run.decides for run in made) or takes > self.time_left:
            return None
        return StageRun(stage.name, setting, workload, gpus, len(made) + 1, f"{stage.name}: {stage.description}")

    def cost(self, run: StageRun) -> float:
        """Return what a run takes, and before it the setup of its stack."""
        stage = self.stages[run.stage]
        return self.host.setup_seconds.get(run.cell.stack.name, 0.0) * (not self._is_made(run)) + self.seen.seconds_of(
            run.workload, max(1, len(run.gpus)), stage.minutes
        )

    def _is_made(self, run: StageRun) -> bool:
        return any(one.row.stack == run.cell.stack.name for one in self.seen.runs)

    def _is_affordable(self, run: StageRun, sound: Sequence[Contender], *, first_turn: bool = False) -> bool:
        """Return whether a run leaves the time to show the best in hand that has not failed to be good."""
        cost = self.cost(run)
        if cost > self.time_left:
            return False
        stage = self.stages[run.stage]
        kept = [one for one in sound if one.seconds_needed <= self.time_left]
        if not kept or (first_turn and stage.devices == "all" and always_on_two(self.matrix, run.cell.stack)):
            return True
        # Of what uses both GPUs one failed start more is reckoned with; one GPU alone is no answer to what was asked.
        slack = SLACK_SECONDS if len(kept[0].gpus) > 1 else 0.0
        return self.time_left - cost - slack >= kept[0].seconds_needed

    def _untried(self) -> tuple[str, ...]:
        """Return the stacks that had no turn, or whose turn has not come to the last stage that explores."""
        last = self.explorer.stages[-1].name
        seen = {run.row.stack for run in self.seen.runs if run.count.counts}
        found = []
        for stack in self.search.order:
            explored = self.explorer.explore(stack, self.search.cells[stack])
            if stack not in seen or (explored.next and not explored.tried.get(last)):
                found.append(stack)
        return tuple(found)

    def end(self, why: StageEndReason, contenders: Sequence[Contender]) -> StageEnd:
        """Return the end of a campaign."""
        best = contenders[0] if contenders else None
        lost = tuple(gpu for gpu in self.search.host.gpus if gpu not in self.search.host.healthy)
        # Without one of the GPUs nothing was shown of all of them.
        why = "gpu-lost" if lost and why != "out-of-time" else why
        return StageEnd(
            why, best, tuple(contenders), tuple(self.explored.values()), self._untried(), self.bad_gpus, lost
        )
