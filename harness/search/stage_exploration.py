"""How far a stack came through the stages that explore, and which run shows more of it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat

from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, Otherwise, exploring
from harness.search.schedule import OF_THE_STACK
from harness.search.stage_runs import (
    FEATURE_PHASES,
    NOT_BEGUN_AT_MOST,
    SeenRun,
    SeenRuns,
    Setting,
    StageHost,
    StageRun,
)

# The kind of count of a run that was not begun.
NOT_BEGUN_KIND = "not begun"
# So many failures, and more than passes, are no accident.
REFUTED_BY = 2


class _Needed(Exception):  # noqa: N818
    """A run has to be made before more can be told."""

    def __init__(self, run: StageRun) -> None:
        super().__init__()
        self.run = run


class _OfStack(Exception):  # noqa: N818
    """A failure that the stack's own contents explain."""


@dataclass
class Explored:
    """`next`: the run that shows more of a stack, None where all is known. `survivors` by stage, `tried` likewise.

    `of_stack`: the diagnosis of a failure that the stack's own contents explain.
    """

    stack: str
    next: StageRun | None = None
    survivors: dict[str, list[Setting]] = field(default_factory=dict)
    tried: dict[str, list[Setting]] = field(default_factory=dict)
    of_stack: str | None = None


@dataclass(frozen=True)
class Explorer:
    """Explores stacks of a matrix on a host, by what the records show."""

    matrix: Matrix
    host: StageHost
    seen: SeenRuns

    @property
    def stages(self) -> list[CampaignStage]:
        """The stages that explore, as far as this host has the GPUs for them."""
        return [stage for stage in exploring(self.matrix.stages) if stage.devices != "all" or self.host.can_use_all]

    def explore(self, stack: str, cells: Sequence[Cell], limit: int | None) -> Explored:
        """Return how far a stack came: its cells in turn, each through all stages, until one came through them all.

        `limit`: how many of `otherwise` of several GPUs are tried; None for all.
        """
        explored = Explored(stack)
        try:
            next(self._through(len(self.stages) - 1, cells, limit, explored), None)
        except _Needed as needed:
            explored.next = needed.run
        except _OfStack as failure:
            explored.of_stack = str(failure)
        return explored

    def _through(self, number: int, cells: Sequence[Cell], limit: int | None, explored: Explored) -> Iterator[Setting]:
        """Yield what comes through a stage: through those before it, one after the other, and no more than is asked."""
        if number < 0:
            yield from map(Setting, cells)
            return
        stage = self.stages[number]
        entrants = self._through(number - 1, cells, limit, explored)
        for first, entrant in zip(chain([True], repeat(False)), islice(entrants, stage.tries)):  # noqa: B905
            here = replace(entrant, strategy=stage.strategy) if stage.devices == "all" else entrant
            if found := self._attempts(stage, here, limit, explored, on_any=first):
                explored.survivors.setdefault(stage.name, []).append(found)
                yield found

    def _attempts(
        self, stage: CampaignStage, entrant: Setting, limit: int | None, explored: Explored, *, on_any: bool
    ) -> Setting | None:
        """Return the first of an entrant and its changes that comes through."""
        otherwise = stage.otherwise[: limit if stage.otherwise_later is not None else None]
        changes: list[Otherwise | None] = [None, *otherwise]
        failed_in: str | None = None
        tried = explored.tried.setdefault(stage.name, [])
        for change in changes:
            if change and change.after and change.after != failed_in:
                continue
            setting = entrant.with_(change, self.matrix) if change else entrant
            if setting is None or setting in tried:
                continue
            runs = self._runs(stage, setting, on_any=on_any)
            if not runs:
                continue
            tried.append(setting)
            failed = [run for run in runs if not run.passed]
            if not failed or (stage.devices == "one" and len(failed) < len(runs)):
                if not self._is_refuted(stage, setting, len(runs[0].gpus)):
                    return setting
                failed_in = "training"
                continue
            if len(failed) < len(runs):
                # What one GPU does and another does not is not for a change of options.
                return None
            failed_in = "features" if failed[0].last_phase in FEATURE_PHASES else "training"
            if failed[0].row.diagnosis in OF_THE_STACK:
                raise _OfStack(failed[0].row.diagnosis)
        return None

    def _is_refuted(self, stage: CampaignStage, setting: Setting, devices: int) -> bool:
        """Return whether it failed again and again when it was run for hours, though it came through once."""
        workload = setting.workload(self.matrix.workloads[stage.workload or ""])
        counted = [run for run in self.seen.of_claim(setting, workload, devices) if run.count.counts]
        failed = sum(not run.passed for run in counted)
        return failed >= REFUTED_BY and 2 * failed > len(counted)

    def _runs(self, stage: CampaignStage, setting: Setting, *, on_any: bool) -> list[SeenRun]:
        """Return the run that decides on each placement; nothing where none can be made.

        The first that counts decides: later ones are made to count hours. All placements are run though one failed:
        what differs between two GPUs is a GPU's. In a stage on one GPU the others are tried where the first fails,
        and `on_any` says so. In one on each the runs may be made side by side.
        """
        workload = setting.workload(self.matrix.workloads[stage.workload or ""])
        decisive: list[SeenRun] = []
        lacking: list[StageRun] = []
        for gpus in self.host.placements(stage, setting.cell):
            made = self.seen.of_run(setting, workload, gpus)
            counted = next((run for run in made if run.decides), None)
            if counted is None:
                if len(made) >= NOT_BEGUN_AT_MOST and all(run.count.kind == NOT_BEGUN_KIND for run in made[-3:]):
                    continue
                changed = f" ({setting.changed})" if setting.changed else ""
                why = f"{stage.name}: {stage.description}{changed}"
                lacking.append(StageRun(stage.name, setting, workload, gpus, len(made) + 1, why))
                if not (self.host.side_by_side and stage.devices == "each"):
                    break
                continue
            decisive.append(counted)
            if stage.devices == "one" and (counted.passed or not on_any):
                break
        if lacking:
            raise _Needed(replace(lacking[0], beside=tuple(lacking[1:])))
        return decisive
