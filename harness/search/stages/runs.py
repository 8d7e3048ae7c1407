"""The runs of stages, each a cell with the stage's workload on certain GPUs, and what the records say of them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import REFUSED, RunCount
from harness.evidence.verdicts.totals import Totals, totals_of
from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, Otherwise
from harness.matrix.strategies import Strategy
from harness.matrix.workload_options import family
from harness.matrix.workloads import Workload

# Last phases of failures on which a change of training has no effect.
BEFORE_FEATURES = frozenset({None, "import", "init", "data"})
# After so many attempts in a row that were not begun, a run is tried no more.
NOT_BEGUN_AT_MOST = 3
# The kind in the count of a run that was not begun.
NOT_BEGUN_KIND = "not begun"


@dataclass(frozen=True)
class Setting:
    """A cell as it passed a stage: with its strategy, and its workload options that differ from the stage's."""

    cell: Cell
    strategy: Strategy = "single"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def changed(self) -> str:
        """The strategy and the options that differ, in words; empty if neither differs from the stage on one GPU."""
        strategy = self.strategy if self.strategy != "single" else ""
        return ", ".join(filter(None, (strategy, self.changed_options)))

    @property
    def changed_options(self) -> str:
        """The options that differ, in words."""
        options = ((name, value if isinstance(value, tuple) else (value,)) for name, value in self.options)
        return ", ".join(f"{name} {', '.join(map(str, values))}" for name, values in options)

    def with_(self, other: Otherwise, matrix: Matrix) -> "Setting | None":
        """Return the setting with a change; None if that makes it an excluded cell."""
        cell = matrix.cell(self.cell.stack.name, other.preset) if other.preset else self.cell
        options = tuple(sorted({**dict(self.options), **other.options}.items()))
        return None if cell.excluded else Setting(cell, other.strategy or self.strategy, options)

    def workload(self, base: Workload) -> Workload:
        """Return a workload of the matrix file as this setting runs it; the options of a program cannot be changed."""
        if base.program:
            return base.model_copy(update={"strategy": self.strategy})
        backend = base.backend if self.strategy == base.strategy else None
        return base.model_copy(update={"strategy": self.strategy, "backend": backend, **dict(self.options)})


@dataclass(frozen=True)
class StageRun:
    """The next run of a campaign, and why. `number` counts runs of the same kind from 1.

    `beside` are the same run on other GPUs, which may begin together with it. Only the same run is made side by side,
    so that no other cell can be the cause if all GPUs go down.
    """

    stage: str
    setting: Setting
    workload: Workload
    gpus: tuple[int, ...]
    number: int
    why: str
    beside: tuple["StageRun", ...] = ()

    @property
    def cell(self) -> Cell:
        """The cell that is run."""
        return self.setting.cell


@dataclass(frozen=True)
class SeenRun:
    """A run of the records, with its count, the last phase, and presets that may help if it failed.

    - `here`: whether it ran on this machine, so that the numbers of its GPUs are those of GPUs here.
    - `on_data`: whether it was made on the data of the campaign.
    """

    row: Row
    count: RunCount
    gpus: tuple[int, ...]
    last_phase: str | None = None
    remedies: tuple[str, ...] = ()
    here: bool = True
    on_data: bool = True

    @property
    def passed(self) -> bool:
        """Return whether it passed."""
        return self.count.counts_as == "passed"

    @property
    def was_refused(self) -> bool:
        """Return whether the app refused its command, as it would again."""
        return self.count.kind == REFUSED

    @property
    def failed_in(self) -> Literal["features", "training"] | None:
        """The phase in which the run failed; None if it passed, or failed before both phases."""
        if self.passed or self.last_phase in BEFORE_FEATURES:
            return None
        return "features" if self.last_phase == "features" else "training"

    @property
    def decides(self) -> bool:
        """Return whether there is no need to make the run again."""
        return self.count.counts or self.was_refused

    @property
    def seconds(self) -> float:
        """The seconds from the start of the run to its record."""
        return self.row.finished - self.row.started


def never_begins(made: Sequence[SeenRun], since: float | None) -> bool:
    """Return whether the last attempts at a run were not begun, so that trying again is useless until a repair.

    `since`: as `StageHost.attempts_since`.
    """
    last = made[-NOT_BEGUN_AT_MOST:]
    if since is None or len(last) < NOT_BEGUN_AT_MOST:
        return False
    return all(run.count.kind == NOT_BEGUN_KIND and run.row.started >= since for run in last)


_Key = tuple[str, str, str, tuple[int, ...]]
# A cell, a workload family and a number of devices.
_Claim = tuple[str, str, int]


@dataclass(frozen=True)
class SeenRuns:
    """The runs of the records that count as evidence for runs made now, by what was run, in order of start."""

    runs: tuple[SeenRun, ...]
    _by_key: Mapping[_Key, Sequence[SeenRun]]
    _by_claim: Mapping[_Claim, Sequence[SeenRun]]

    @classmethod
    def of(cls, runs: Iterable[SeenRun]) -> "SeenRuns":
        """Return these runs, sorted and indexed."""
        ordered = tuple(sorted(runs, key=lambda run: (run.row.started, run.row.run_id)))
        by_key: dict[_Key, list[SeenRun]] = {}
        by_claim: dict[_Claim, list[SeenRun]] = {}
        for run in ordered:
            by_key.setdefault((run.row.cell, run.row.workload, run.row.family, run.gpus), []).append(run)
            by_claim.setdefault((run.row.cell, run.row.family, len(run.gpus)), []).append(run)
        return cls(ordered, by_key, by_claim)

    def of_run(self, setting: Setting, workload: Workload, gpus: tuple[int, ...]) -> Sequence[SeenRun]:
        """Return the runs with exactly this setting, workload and GPUs."""
        key = (setting.cell.id, workload.name, family(workload, len(gpus)), tuple(sorted(gpus)))
        return self._by_key.get(key, ())

    def of_claim(self, setting: Setting, workload: Workload, devices: int) -> Sequence[SeenRun]:
        """Return the runs that are counted together with those of a setting: the same cell, family and GPU count."""
        return self._by_claim.get((setting.cell.id, family(workload, devices), devices), ())

    def cells_not_begun(self, since: float | None) -> tuple[str, ...]:
        """Return the cells with a run that never begins; `since` is as in `never_begins`."""
        return tuple(sorted({key[0] for key, made in self._by_key.items() if never_begins(made, since)}))

    def seconds_of(self, workload: Workload, devices: int, minutes: float) -> float:
        """Return the seconds that a run takes: the median of those that passed, otherwise `minutes`."""
        taken = [run.seconds for run in self._passed(workload, devices)]
        return median(taken) if taken else minutes * 60

    def hours_of(self, workload: Workload, devices: int, minutes: float) -> float:
        """Return the hours that a run trains: the median of those that passed, otherwise 90 % of `minutes`."""
        trained = [seconds / 3600 for run in self._passed(workload, devices) if (seconds := run.row.exposure_seconds)]
        return median(trained) if trained else 0.9 * minutes / 60

    def _passed(self, workload: Workload, devices: int) -> Iterator[SeenRun]:
        alike = (run for run in self.runs if run.row.workload == workload.name and len(run.gpus) == devices)
        return (run for run in alike if run.passed)


def totals_of_seen(runs: Iterable[SeenRun]) -> Totals:
    """Return the totals of runs, counted as in verdicts."""
    runs = list(runs)
    return totals_of([run.row for run in runs], {run.row.run_id: run.count for run in runs})


@dataclass(frozen=True)
class StageHost:
    """The host of a campaign.

    Attributes:
        gpus: its GPUs, in the order of preference.
        healthy: the GPUs that may take runs.
        setup_seconds: the seconds that each stack takes to make, if it is not made yet.
        side_by_side: runs on one GPU each may run at the same time.
        screened: further GPUs that runs may not use, because a screen is connected to them.
        attempts_since: attempts that were not begun before this time belong to an earlier command, in seconds since
            1970; None if a dispatcher decides which hosts to avoid.
    """

    gpus: tuple[int, ...]
    healthy: tuple[int, ...]
    setup_seconds: Mapping[str, float] = field(default_factory=dict)
    side_by_side: bool = False
    screened: tuple[int, ...] = ()
    attempts_since: float | None = 0.0

    @property
    def can_use_all(self) -> bool:
        """Return whether there are several GPUs, all of which may take runs."""
        return len(self.gpus) > 1 and set(self.gpus) <= set(self.healthy)

    def placements(self, stage: CampaignStage, cell: Cell) -> list[tuple[int, ...]]:
        """Return the GPUs of each run of a cell in a stage; only GPUs that may take runs."""
        if stage.devices == "all":
            return [tuple(sorted(self.gpus))] if self.can_use_all else []
        wanted = [cell.preset.devices] if cell.preset.devices else [(gpu,) for gpu in self.gpus]
        return [gpus for gpus in wanted if set(gpus) <= set(self.healthy)]
