"""Which run of a campaign in stages is next, by all that the records show, or why it ends. Pure.

Depth first: a stack goes through the stages that explore, and what came through them with the strategy that is wanted
most is run until it is shown to be good. What failed once, and what uses the GPUs in a less wanted way, stays in hand:
it is run for hours when nothing else is left to explore, or when the time that is left is just enough for that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Literal

from harness.evidence.verdicts.missing import Shortfall, missing_to
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import reaches
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, endurance, exploring, of_winner
from harness.matrix.strategies import Strategy
from harness.matrix.two_gpus import always_on_two, in_turn
from harness.matrix.workloads import Workload
from harness.search.stage_exploration import Explored, Explorer
from harness.search.stage_gpus import bad_gpus
from harness.search.stage_runs import SeenRuns, Setting, StageHost, StageRun, totals_of_seen

StageEndReason = Literal["good", "none", "out-of-time", "gpu-lost"]
# What is reckoned with beyond what a claim takes without a failure.
SLACK_SECONDS = 3000.0
# What failed so often is run no more.
MOST_FAILURES = 4


@dataclass(frozen=True)
class Contender:
    """A setting that came through the stages: where its runs are made, what they show, and what is missing to the tier.

    `lanes`: all GPUs on which its runs may be made side by side, one on each. `rank`: 0 is the way to use the GPUs that
    is wanted most. `seconds_needed` without a failure from now on, and what another that was not run yet would need.
    """

    setting: Setting
    stage: CampaignStage
    gpus: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]
    rank: int
    totals: Totals
    confidence: float
    is_good: bool
    missing: Shortfall
    long_runs: int
    seconds_needed: float
    seconds_of_another: float

    @property
    def failures(self) -> int:
        """Return how many runs failed, at their start or later."""
        return self.totals.failures + self.totals.starts - self.totals.started

    @property
    def is_sound(self) -> bool:
        """Return whether it has not failed, or but for one start and is nearer to the tier than another would be.

        What is good fails to start now and then, too.
        """
        almost = not self.totals.failures and self.failures == 1
        return not self.failures or (almost and self.seconds_needed <= self.seconds_of_another)


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
    """One look at the records, and the decision by it."""

    search: StageSearch
    seen: SeenRuns
    time_left: float
    explored: list[Explored] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.matrix = self.search.matrix
        self.bad_gpus = bad_gpus(self.seen)
        healthy = tuple(gpu for gpu in self.search.host.healthy if gpu not in self.bad_gpus)
        self.host = replace(self.search.host, healthy=healthy or self.search.host.healthy)
        self.stages = self.matrix.stages
        self.explorer = Explorer(self.matrix, self.host, self.seen)
        self.endurance = endurance(self.stages)

    def next(self) -> StageRun | StageEnd:
        """Return the next run, or the end."""
        first_turn = self._explore(fully=False)
        contenders = self._contenders()
        good = next((one for one in contenders if one.is_good), None)
        if good and good.rank == 0:
            return self._of_winner(good) or self._end("good", contenders)
        # What would use the GPUs in a less wanted way than one that is good already has nothing to show.
        open_ = [one for one in contenders if one.failures < MOST_FAILURES and (not good or one.rank < good.rank)]
        sound = sorted((one for one in open_ if one.is_sound), key=lambda one: (one.rank, one.seconds_needed))
        for one in self._in_turn(first_turn, sound, open_):
            if run := one if isinstance(one, StageRun) else self._endure(one):
                return run
        why = self._why(open_)
        if good:
            several = good.rank < len(self._ranks) - 1
            return self._of_winner(good) or self._end("good" if several else why, contenders)
        return self._end(why, contenders)

    def _in_turn(
        self, first_turn: StageRun | None, sound: Sequence[Contender], open_: Sequence[Contender]
    ) -> Iterator[StageRun | Contender]:
        """Yield what is to be run, the most promising first.

        What is wanted most and has not failed; a stack that had no turn; what uses all GPUs in another way; all that is
        still untried of stacks that had their turn; then what is left, what failed least first.
        """
        yield from (one for one in sound if one.rank == 0)
        if first_turn and self._is_affordable(first_turn, sound):
            yield first_turn
        yield from (one for one in sound if len(one.gpus) > 1)
        untried = first_turn or self._explore(fully=True)
        if untried and self._is_affordable(untried, sound):
            yield untried
        yield from (one for one in open_ if one.seconds_needed <= self.time_left)
        yield from (one for one in open_ if one.seconds_needed > self.time_left)
        if untried and self.cost(untried) <= self.time_left:
            yield untried

    def _why(self, open_: Sequence[Contender]) -> StageEndReason:
        """Return `none` where every stack had its turn, and nothing is left that only lacks the time.

        What failed once may still be shown to be good: it takes longer.
        """
        several = len(self._ranks) > 1
        lacking = [one for one in open_ if one.gpus and (len(one.gpus) > 1 or not several)]
        return "out-of-time" if lacking or self._untried() else "none"

    def _explore(self, *, fully: bool) -> StageRun | None:
        """Return the run that shows more of the first stack that is not known in full; opens no stack after it."""
        self.explored = []
        first = True
        for stack in self.search.order:
            later = next((stage.otherwise_later for stage in exploring(self.stages) if stage.devices == "all"), None)
            limit = None if first or fully else later
            explored = self.explorer.explore(stack, self.search.cells[stack], limit)
            self.explored.append(explored)
            if explored.next:
                return explored.next
            if any(explored.tried.get(stage.name) for stage in exploring(self.stages) if stage.devices == "all"):
                first = False
        return None

    def _contenders(self) -> list[Contender]:
        """Return what came through, the most wanted first, of those what failed least."""
        found: list[Contender] = []
        several = next((stage for stage in exploring(self.stages) if stage.devices == "all"), None)
        single = next((stage for stage in reversed(exploring(self.stages)) if stage.devices == "each"), None)
        endured = 0
        for explored in self.explored:
            for stage in (several, single):
                for setting in explored.survivors.get(stage.name, []) if stage else []:
                    one = self._contender(setting, stage, endured + 1)  # type: ignore[arg-type]
                    endured += one[1]
                    found.append(one[0])
        return sorted(found, key=lambda one: (not one.is_good, one.rank, one.failures))

    def _contender(self, setting: Setting, stage: CampaignStage, number: int) -> tuple[Contender, bool]:
        placements = self.host.placements(stage, setting.cell) or [()]
        gpus = placements[0]
        lanes = tuple(placements) if self.host.side_by_side else (gpus,)
        devices = max(1, len(gpus))
        short = setting.workload(self.matrix.workloads[stage.workload or ""])
        runs = self.seen.of_claim(setting, short, devices)
        totals = totals_of_seen(runs)
        thresholds = self.matrix.verdicts
        tier = self.endurance.until if self.endurance and self.endurance.until else "good"
        long = self._long(setting)
        has_endured = long is not None and any(run.row.workload == long.name for run in runs)
        # Each that was run for hours is one more that may look good by chance.
        confidence = 1 - (1 - thresholds.confidence) / number
        missing = missing_to(totals, tier, thresholds, confidence)
        runs_missing = partial(
            self._runs_missing, long=long, short=short, devices=devices, stage=stage, lanes=len(lanes)
        )
        many, seconds = runs_missing(missing)
        fresh = missing_to(Totals(), tier, thresholds, confidence)
        _, seconds_fresh = runs_missing(fresh)
        is_good = reaches(totals, tier, thresholds, confidence)
        rank = self._ranks.index(setting.strategy)
        one = Contender(
            setting=setting,
            stage=stage,
            gpus=gpus,
            lanes=lanes,
            rank=rank,
            totals=totals,
            confidence=confidence,
            is_good=is_good,
            missing=missing,
            long_runs=many,
            seconds_needed=seconds,
            seconds_of_another=seconds_fresh,
        )
        return one, has_endured

    def _runs_missing(
        self,
        missing: Shortfall,
        long: Workload | None,
        short: Workload,
        devices: int,
        stage: CampaignStage,
        lanes: int,
    ) -> tuple[int, float]:
        """Return how many long runs are missing without a failure, and the seconds that they and short ones take.

        Short ones are needed for starts anyway, and bring some hours too. On several lanes runs are made side by side.
        """
        takes = self.seen.seconds_of(short, devices, stage.minutes)
        brings = self.seen.hours_of(short, devices, stage.minutes)
        if long is None:
            return 0, ceil(max(missing.starts, ceil(missing.hours / brings)) / lanes) * takes
        takes_long = self.seen.seconds_of(long, devices, self._minutes)
        brings_long = self.seen.hours_of(long, devices, self._minutes)
        most = ceil(missing.hours / brings_long - 1e-9)
        ways = []
        for many in (max(0, most - 1), most):
            rest = ceil(max(0.0, missing.hours - many * brings_long) / brings - 1e-9)
            few = max(0, missing.starts - many, rest)
            ways.append((ceil(many / lanes) * takes_long + ceil(few / lanes) * takes, many))
        seconds, many = min(ways)
        return many, seconds

    @property
    def _minutes(self) -> float:
        return self.endurance.minutes if self.endurance else 0.0

    @property
    def _ranks(self) -> list[Strategy]:
        """The strategies, those that are wanted most first."""
        several = [stage for stage in exploring(self.stages) if stage.devices == "all" and self.host.can_use_all]
        named = [one for stage in several for one in (stage.strategy, *(o.strategy for o in stage.otherwise)) if one]
        return list(dict.fromkeys([*named, "single"]))

    def _long(self, setting: Setting) -> Workload | None:
        if self.endurance is None:
            return None
        return setting.workload(self.matrix.workloads[self.endurance.workload or ""])

    def _endure(self, one: Contender) -> StageRun | None:
        """Return the next long run of a contender; a short one where only starts are missing, or no long one fits."""
        long = self._long(one.setting)
        if not one.gpus or long is None or self.endurance is None:
            return None
        short = one.setting.workload(self.matrix.workloads[one.stage.workload or ""])
        devices = len(one.gpus)
        missing = f"{one.missing.in_words} to `{self.endurance.until}`"
        for workload, minutes, wanted in (
            (long, self.endurance.minutes, one.long_runs),
            (short, one.stage.minutes, max(1, one.missing.starts)),
        ):
            made = (run for gpus in one.lanes for run in self.seen.of_run(one.setting, workload, gpus))
            if any(run.was_refused for run in made):
                continue
            if wanted and self.seen.seconds_of(workload, devices, minutes) <= self.time_left:
                why = f"{self.endurance.name}: {missing}"
                first, *others = (
                    StageRun(
                        self.endurance.name,
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

    def _is_affordable(self, run: StageRun, sound: Sequence[Contender]) -> bool:
        """Return whether a run leaves the time to show the best in hand that has not failed to be good."""
        cost = self.cost(run)
        if cost > self.time_left:
            return False
        stage = self.stages[run.stage]
        kept = [one for one in sound if one.seconds_needed <= self.time_left]
        if not kept or (stage.devices == "all" and always_on_two(self.matrix, run.cell.stack)):
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
            explored = self.explorer.explore(stack, self.search.cells[stack], 0)
            if stack not in seen or (explored.next and not explored.tried.get(last)):
                found.append(stack)
        return tuple(found)

    def _end(self, why: StageEndReason, contenders: Sequence[Contender]) -> StageEnd:
        best = contenders[0] if contenders else None
        lost = tuple(gpu for gpu in self.search.host.gpus if gpu not in self.search.host.healthy)
        # Without one of the GPUs nothing was shown of all of them.
        why = "gpu-lost" if lost and why != "out-of-time" else why
        return StageEnd(why, best, tuple(contenders), tuple(self.explored), self._untried(), self.bad_gpus, lost)
