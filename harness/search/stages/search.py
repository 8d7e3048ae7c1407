"""Chooses the next run of a campaign in stages by all that the records show, or says why the campaign ends. Pure.

The search goes depth first: a stack goes through the stages that explore, and what passed them with the most wanted
strategy is run until it is shown to be good. Settings that failed once, or use the GPUs in a less wanted way, are kept:
they get long runs when nothing else is left to explore, or when the time left is just enough for that. Once every stack
had its turn and nothing is good on all GPUs, further presets are tried, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, exploring, of_winner
from harness.matrix.two_gpus import always_on_two
from harness.matrix.workloads import Workload
from harness.search.stages.contenders import Contender, Contenders
from harness.search.stages.exploration import Depth, Explored, Explorer
from harness.search.stages.gpus import bad_gpus
from harness.search.stages.runs import SeenRuns, Setting, StageHost, StageRun, never_begins

StageEndReason = Literal["good", "none", "out-of-time", "gpu-lost"]
# Seconds added to what a claim takes without a failure.
SLACK_SECONDS = 3000.0
# After so many failures a setting is run no more.
MOST_FAILURES = 4
# Once so many settings passed the stages and failed later, the next may as well, so every stack gets its turn first.
SEVERAL_FAILED = 2


@dataclass(frozen=True)
class StageEnd:
    """Why a campaign ends, what it found, and what it left.

    Attributes:
        best: the contender that is good, or else the nearest one; None if nothing passed the stages.
        untried: the stacks with a stage that was not tried to its end.
        bad_gpus: GPUs that fail what others pass.
        lost_gpus: unhealthy GPUs, which may take no runs until somebody fixes them.
        not_begun: cells with a run that was tried several times and not begun.
    """

    why: StageEndReason
    best: Contender | None
    contenders: tuple[Contender, ...]
    explored: tuple[Explored, ...]
    untried: tuple[str, ...]
    bad_gpus: tuple[int, ...] = ()
    lost_gpus: tuple[int, ...] = ()
    not_begun: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageSearch:
    """Chooses the runs of a campaign in stages. `cells` are the cells of the selection by stack, in its order."""

    matrix: Matrix
    cells: Mapping[str, Sequence[Cell]]
    host: StageHost

    def next(self, seen: SeenRuns, time_left: float | None) -> StageRun | StageEnd:
        """Return the next run, or why there is none. `time_left` is in seconds; None without a budget."""
        return _Decision(self, seen, float("inf") if time_left is None else time_left).next()

    def end_early(self, seen: SeenRuns) -> StageEnd:
        """Return how a campaign ends early because one of its GPUs is lost."""
        look = _Decision(self, seen, float("inf"))
        look.explore()
        return look.end("gpu-lost", look.contenders())

    def least_budget(self, seen: SeenRuns, budget: float) -> float | None:
        """Return the seconds of the next run, with its stack's setup, if no run fits into a budget; else None."""
        if isinstance(self.next(seen, budget), StageRun):
            return None
        look = _Decision(self, seen, float("inf"))
        following = look.next()
        return look.cost(following) if isinstance(following, StageRun) else None

    def spare(self, run: StageRun, seen: SeenRuns, time_left: float | None) -> float | None:
        """Return the seconds that are left after a run; None without a budget."""
        return None if time_left is None else time_left - _Decision(self, seen, time_left).cost(run)

    def to_prepare(self, run: StageRun, seen: SeenRuns) -> str | None:
        """Return the stack to make while a run goes on: the next one, once something trained on one GPU.

        Before that, nothing is downloaded that the campaign may not need.
        """
        smoke = {stage.workload for stage in exploring(self.matrix.stages)[:1]}
        if not any(one.passed and one.row.workload not in smoke for one in seen.runs):
            return None
        stack = run.cell.stack.name
        following = self.order[self.order.index(stack) + 1 :][:1] if stack in self.order else []
        return next((one for one in following if one in self.host.setup_seconds), None)

    @property
    def order(self) -> list[str]:
        """The stacks in turn."""
        return list(self.cells)


@dataclass
class _Decision:
    """One look at the records, and the decision from it. `new_to`: the stages that a stack was the first to reach."""

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
        self.not_begun = self.seen.cells_not_begun(self.host.attempts_since)

    def next(self) -> StageRun | StageEnd:
        """Return the next run, or the end."""
        following, depth = self.explore()
        contenders = self.contenders()
        good = next((one for one in contenders if one.is_good), None)
        unseen = [one for one in contenders if one.unseen and (not good or one.rank < good.rank)]
        if on_data := next(filter(None, map(self._endure, unseen)), None):
            return on_data
        if good and good.rank == 0:
            return self._of_winner(good) or self.end("good", contenders)
        # A setting that uses the GPUs in a less wanted way than one that is good already has nothing more to show.
        may_run = (one for one in contenders if one.failures < MOST_FAILURES and not one.unverified)
        open_ = [one for one in may_run if not good or one.rank < good.rank]
        sound = sorted((one for one in open_ if one.is_sound), key=lambda one: (one.rank, one.seconds_needed))
        for one in self._in_turn(following, depth, sound, open_):
            if run := one if isinstance(one, StageRun) else self._endure(one):
                return run
        why = self._why(open_, following)
        if good:
            return self._of_winner(good) or self.end("good" if self._is_on_several(good) else why, contenders)
        return self.end(why, contenders)

    def contenders(self) -> list[Contender]:
        """Return the contenders, sorted as by `Contenders.of`."""
        return self.makes.of(self.explored.values())

    def _is_on_several(self, one: Contender) -> bool:
        return one.rank < len(self.makes.ranks) - 1

    def _in_turn(
        self, following: StageRun | None, depth: Depth, sound: Sequence[Contender], open_: Sequence[Contender]
    ) -> Iterator[StageRun | Contender]:
        """Yield runs and contenders, the most promising first; `following` is the exploring run, and `depth` its depth.

        The order is:

        - the most wanted settings without a failure, unless several such settings failed in long runs;
        - a stack that had no turn yet;
        - settings that use all GPUs in another way;
        - everything untried on all GPUs, of stacks that had their turn;
        - settings on all GPUs that failed, but may be shown to be good in time;
        - further presets;
        - the rest, the fewest failures first.
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
        """Return `none` if every stack had its turn and nothing is left that only lacks time; otherwise `out-of-time`.

        A setting that failed once may still be shown to be good: it takes longer.
        """
        several = len(self.makes.ranks) > 1
        may_begin = [one for one in open_ if one.gpus and one.setting.cell.id not in self.not_begun]
        lacking = [one for one in may_begin if len(one.gpus) > 1 or not several]
        return "out-of-time" if lacking or following or self._untried() else "none"

    def explore(self) -> tuple[StageRun | None, Depth]:
        """Return the run that shows more of the first stack that is not fully known, and its depth.

        Every stack is explored to one depth before any stack is explored deeper. If something is good on several GPUs,
        no further presets are tried.
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
            # What passed all stages needs no further preset; of the others, those that came further promise more.
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
        """Return the next long run of a contender, or a short run if only starts are missing or no long run fits."""
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
            made = {gpus: self.seen.of_run(one.setting, workload, gpus) for gpus in one.lanes}
            if any(run.was_refused for of_lane in made.values() for run in of_lane):
                continue
            lanes = [gpus for gpus in one.lanes if not never_begins(made[gpus], self.host.attempts_since)][:wanted]
            if lanes and self.seen.seconds_of(workload, devices, minutes) <= self.time_left:
                why = f"{self.makes.endurance.name}: {missing}"
                first, *others = (
                    StageRun(
                        self.makes.endurance.name,
                        one.setting,
                        workload,
                        gpus,
                        len(made[gpus]) + 1,
                        why,
                    )
                    for gpus in lanes
                )
                return replace(first, beside=tuple(others))
        return None

    def _of_winner(self, winner: Contender) -> StageRun | None:
        """Return the next run of a good setting: the winner's stages, once each, then other strategies beside it."""
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
        is_done = any(run.decides and run.on_data for run in made) or never_begins(made, self.host.attempts_since)
        if not gpus or is_done or takes > self.time_left:
            return None
        return StageRun(stage.name, setting, workload, gpus, len(made) + 1, f"{stage.name}: {stage.description}")

    def cost(self, run: StageRun) -> float:
        """Return the seconds that a run takes, with the setup of its stack if that is not made."""
        stage = self.stages[run.stage]
        return self.host.setup_seconds.get(run.cell.stack.name, 0.0) * (not self._is_made(run)) + self.seen.seconds_of(
            run.workload, max(1, len(run.gpus)), stage.minutes
        )

    def _is_made(self, run: StageRun) -> bool:
        return any(one.row.stack == run.cell.stack.name for one in self.seen.runs)

    def _is_affordable(self, run: StageRun, sound: Sequence[Contender], *, first_turn: bool = False) -> bool:
        """Return whether a run leaves enough time to show the best sound contender to be good."""
        cost = self.cost(run)
        if cost > self.time_left:
            return False
        stage = self.stages[run.stage]
        kept = [one for one in sound if one.seconds_needed <= self.time_left]
        if not kept or (first_turn and stage.devices == "all" and always_on_two(self.matrix, run.cell.stack)):
            return True
        # On several GPUs, allow time for one more failed start; on one GPU alone, a contender does not answer the
        # question.
        slack = SLACK_SECONDS if len(kept[0].gpus) > 1 else 0.0
        return self.time_left - cost - slack >= kept[0].seconds_needed

    def _untried(self) -> tuple[str, ...]:
        """Return the stacks that had no turn, or did not yet reach the last stage that explores."""
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
        # If one of the GPUs is lost, nothing was shown about all of them.
        why = "gpu-lost" if lost and why != "out-of-time" else why
        return StageEnd(
            why,
            best,
            tuple(contenders),
            tuple(self.explored.values()),
            self._untried(),
            self.bad_gpus,
            lost,
            self.not_begun,
        )
