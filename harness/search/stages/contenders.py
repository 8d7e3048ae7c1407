"""Settings that passed the stages that explore, and what each lacks until it is shown to be good. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from harness.evidence.verdicts.missing import Shortfall, missing_to
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import reaches
from harness.matrix.cells import Matrix
from harness.matrix.stages import CampaignStage, endurance, exploring
from harness.matrix.strategies import Strategy
from harness.matrix.workloads import Workload
from harness.search.stages.exploration import Explored
from harness.search.stages.runs import SeenRuns, Setting, StageHost, totals_of_seen

# After so many runs in a row that were not verified, a setting is run no more.
UNVERIFIED_AT_MOST = 3


@dataclass(frozen=True)
class Contender:
    """A setting that passed the stages, with what its runs show.

    Attributes:
        gpus: the GPUs of its next run.
        lanes: all GPUs on which its runs may be made side by side, one run on each.
        rank: the rank of its strategy; 0 is the way to use the GPUs that is wanted most.
        missing: what it lacks until it reaches the tier.
        seconds_needed: the seconds of runs without a failure that would bring that.
        seconds_of_another: the seconds that a contender without any run would need.
        unverified: its last runs were not verified, so that more of them would show nothing either.
        unseen: its runs on other data show it to be good, and none was made on the data of the campaign.
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
    unverified: bool = False
    unseen: bool = False

    @property
    def failures(self) -> int:
        """The number of runs that failed, at their start or later."""
        return self.totals.failures + self.totals.starts - self.totals.started

    @property
    def is_sound(self) -> bool:
        """Return whether it has not failed, or only at one start and is nearer to the tier than a new one would be.

        Even a good setting fails to start now and then.
        """
        almost = not self.totals.failures and self.failures == 1
        return not self.failures or (almost and self.seconds_needed <= self.seconds_of_another)


@dataclass(frozen=True)
class Contenders:
    """Makes contenders of the settings that passed the stages, by what the records show."""

    matrix: Matrix
    host: StageHost
    seen: SeenRuns

    @property
    def endurance(self) -> CampaignStage | None:
        """The stage of the long runs; None if there is none."""
        return endurance(self.matrix.stages)

    @property
    def ranks(self) -> list[Strategy]:
        """The strategies, the most wanted first."""
        several = [stage for stage in exploring(self.matrix.stages) if stage.devices == "all" and self.host.can_use_all]
        named = [one for stage in several for one in (stage.strategy, *(o.strategy for o in stage.otherwise)) if one]
        return list(dict.fromkeys([*named, "single"]))

    def of(self, explored: Iterable[Explored]) -> list[Contender]:
        """Return the contenders: good ones first, then by how wanted they are, then by their failures."""
        found: list[Contender] = []
        several = next((stage for stage in exploring(self.matrix.stages) if stage.devices == "all"), None)
        single = next((stage for stage in reversed(exploring(self.matrix.stages)) if stage.devices == "each"), None)
        endured = 0
        for one_stack in explored:
            for stage in filter(None, (several, single)):
                for setting in one_stack.survivors.get(stage.name, []):
                    one, has_endured = self._contender(setting, stage, endured + 1)
                    endured += has_endured
                    found.append(one)
        return sorted(found, key=lambda one: (not one.is_good, one.rank, one.failures))

    def long(self, setting: Setting) -> Workload | None:
        """Return the workload of the long runs of a setting; None if there is no such stage."""
        if self.endurance is None:
            return None
        return setting.workload(self.matrix.workloads[self.endurance.workload or ""])

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
        long = self.long(setting)
        has_endured = long is not None and any(run.row.workload == long.name for run in runs)
        # Each further setting that had a long run is one more that may look good by chance.
        confidence = 1 - (1 - thresholds.confidence) / number
        reached = reaches(totals, tier, thresholds, confidence)
        # Runs on other data count, but not even a good cell is the answer without a run that passed on these.
        on_data = [run for run in runs if run.on_data and run.count.counts]
        is_good = reached and any(run.passed and not run.row.is_unverified for run in on_data)
        missing = missing_to(totals, tier, thresholds, confidence)
        if reached and not is_good:
            missing = replace(missing, starts=1)
        runs_missing = partial(
            self._runs_missing, long=long, short=short, devices=devices, stage=stage, lanes=len(lanes)
        )
        many, seconds = runs_missing(missing)
        fresh = missing_to(Totals(), tier, thresholds, confidence)
        _, seconds_fresh = runs_missing(fresh)
        rank = self.ranks.index(setting.strategy)
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
            unverified=len(runs) >= UNVERIFIED_AT_MOST
            and all(run.passed and run.row.is_unverified for run in runs[-UNVERIFIED_AT_MOST:]),
            unseen=reached and not on_data,
        )
        return one, has_endured

    def _runs_missing(
        self, missing: Shortfall, long: Workload | None, short: Workload, devices: int, stage: CampaignStage, lanes: int
    ) -> tuple[int, float]:
        """Return how many long runs without a failure are missing, and the seconds that they and the short runs take.

        Short runs are needed for the starts anyway, and also give some hours. On several lanes runs are made side by
        side.
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
