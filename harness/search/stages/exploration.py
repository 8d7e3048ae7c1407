"""Finds how far a stack came through the stages that explore, and which run shows more of it. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice

from harness.matrix.cells import Cell, Matrix
from harness.matrix.stages import CampaignStage, Otherwise, exploring
from harness.search.schedule import OF_THE_STACK
from harness.search.stages.runs import SeenRun, SeenRuns, Setting, StageHost, StageRun, never_begins

# From this many failures on, if they are more than the passes, a setting is refuted.
REFUTED_BY = 2


class Depth(IntEnum):
    """How much of a stack is tried; each depth includes those before it.

    - `TURN`: the first cells of each stage (`tries` or `tries_later`), and the part of `otherwise` meant for later
      stacks.
    - `ALL_GPUS`: all of `otherwise` in stages on all GPUs, and the strategies beside.
    - `REMEDIES`: further presets that the diagnosis of a failure recommends.
    - `PRESETS`: all other presets.
    - `CHANGES`: all of `otherwise`.
    """

    TURN = 0
    ALL_GPUS = 1
    REMEDIES = 2
    PRESETS = 3
    CHANGES = 4


class _Needed(Exception):  # noqa: N818
    """Raised when a run has to be made before more is known."""

    def __init__(self, run: StageRun) -> None:
        super().__init__()
        self.run = run


class _OfStack(Exception):  # noqa: N818
    """Raised for a failure that the stack's own contents explain."""


@dataclass
class Explored:
    """The knowledge of a stack. `next`: the run that shows more, None if all is known; the others go by stage."""

    stack: str
    next: StageRun | None = None
    survivors: dict[str, list[Setting]] = field(default_factory=dict)
    tried: dict[str, list[Setting]] = field(default_factory=dict)


@dataclass(frozen=True)
class Explorer:
    """Explores the stacks of a matrix on a host, by what the records show."""

    matrix: Matrix
    host: StageHost
    seen: SeenRuns

    @property
    def stages(self) -> list[CampaignStage]:
        """The stages that explore, if this host has enough healthy GPUs for them."""
        return [stage for stage in exploring(self.matrix.stages) if stage.devices != "all" or self.host.can_use_all]

    def explore(
        self, stack: str, cells: Sequence[Cell], depth: Depth = Depth.TURN, new_to: frozenset[str] = frozenset()
    ) -> Explored:
        """Return how far a stack came: its cells go in turn through all stages, until one has passed them all.

        `new_to`: the stages that no stack reached before this one; all of their `otherwise` is tried.
        """
        explored = Explored(stack)
        asked = _Asked(self._in_turn(stack, cells, depth), depth, new_to)
        try:
            if next(self._through(len(self.stages) - 1, asked, explored), None) is None and depth >= Depth.ALL_GPUS:
                self._beside(explored)
        except _Needed as needed:
            explored.next = needed.run
        except _OfStack:
            pass
        return explored

    def _in_turn(self, stack: str, cells: Sequence[Cell], depth: Depth) -> Sequence[Cell]:
        """Return the cells that may be tried, in order: the control, those that ran, those that may help, others."""
        ran = {run.row.cell for run in self.seen.runs}
        failures = (run for run in self.seen.runs if run.row.stack == stack and run.count.counts and not run.passed)
        remedies = {preset for run in failures for preset in run.remedies}
        # The control comes first, because it says most about a stack, even if other cells were run by hand before.
        others = sorted(cells[1:], key=lambda cell: (cell.id not in ran, cell.preset.name not in remedies))
        ordered = [*cells[:1], *others]
        if depth != Depth.REMEDIES:
            return ordered
        return [cell for cell in ordered if cell.id in ran or cell.preset.name in remedies]

    def _through(self, number: int, asked: "_Asked", explored: Explored) -> Iterator[Setting]:
        """Yield the settings that pass a stage, of those that passed the stages before it, as many as are asked for."""
        if number < 0:
            yield from map(Setting, asked.cells)
            return
        stage = self.stages[number]
        entrants = self._through(number - 1, asked, explored)
        for place, entrant in enumerate(islice(entrants, asked.tries(stage))):
            here = replace(entrant, strategy=stage.strategy) if stage.devices == "all" else entrant
            if found := self._attempts(stage, here, asked.changes(stage, place), explored, on_any=place == 0):
                explored.survivors.setdefault(stage.name, []).append(found)
                yield found

    def _attempts(
        self, stage: CampaignStage, entrant: Setting, changes: Sequence[Otherwise], explored: Explored, *, on_any: bool
    ) -> Setting | None:
        """Return the first of an entrant and its changes that passes a stage; None if none does.

        Changes of training are applied to what passed the features; changes of features end once the features pass.
        """
        past: Setting | None = None
        failed_in_features = False
        tried = explored.tried.setdefault(stage.name, [])
        for change in (None, *changes):
            if change and change.after and (past is None if change.after == "training" else not failed_in_features):
                continue
            base = past if past and change and change.after == "training" else entrant
            setting = base.with_(change, self.matrix) if change else entrant
            if setting is None or setting in tried:
                continue
            runs = self._runs(stage, setting, on_any=on_any)
            if not runs:
                continue
            tried.append(setting)
            failed = [run for run in runs if not run.passed]
            partly = len(failed) < len(runs)
            if not failed or (stage.devices == "one" and partly):
                if not self._is_refuted(stage, setting, len(runs[0].gpus)):
                    return setting
                past = past or setting
                continue
            in_features = any(run.failed_in == "features" for run in failed)
            if partly and not in_features:
                # If one GPU passes and another fails, a change of training cannot help.
                return None
            if not partly and failed[0].row.diagnosis in OF_THE_STACK:
                raise _OfStack
            if all(run.failed_in == "training" for run in failed):
                past = past or setting
            failed_in_features = past is None and (failed_in_features or in_features)
        return None

    def _beside(self, explored: Explored) -> None:
        """Ask for the strategies that are tried beside a stage on all GPUs, once each, with its first setting."""
        for stage in self.stages:
            for strategy in stage.beside:
                for setting in explored.tried.get(stage.name, [])[:1]:
                    self._runs(stage, replace(setting, strategy=strategy), on_any=False)

    def _is_refuted(self, stage: CampaignStage, setting: Setting, devices: int) -> bool:
        """Return whether a setting failed repeatedly in later runs, although it passed the stage once."""
        workload = setting.workload(self.matrix.workloads[stage.workload or ""])
        counted = [run for run in self.seen.of_claim(setting, workload, devices) if run.count.counts]
        failed = sum(not run.passed for run in counted)
        return failed >= REFUTED_BY and 2 * failed > len(counted)

    def _runs(self, stage: CampaignStage, setting: Setting, *, on_any: bool) -> list[SeenRun]:
        """Return the run that decides on each placement; none if no run can be made.

        The first run that counts decides, because later ones only add hours. All placements are run even if one failed,
        because a difference between two GPUs is the fault of a GPU. In a stage on one GPU, the other GPUs are only
        tried after a failure and with `on_any`. In a stage on each GPU, the runs may be made side by side.

        Raises:
            _Needed: when a run has to be made first.
        """
        workload = setting.workload(self.matrix.workloads[stage.workload or ""])
        decisive: list[SeenRun] = []
        lacking: list[StageRun] = []
        for gpus in self.host.placements(stage, setting.cell):
            made = self.seen.of_run(setting, workload, gpus)
            counted = next((run for run in made if run.decides), None)
            if counted is None:
                if never_begins(made, self.host.attempts_since):
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


@dataclass(frozen=True)
class _Asked:
    """The cells to explore, in order, and how deep."""

    cells: Sequence[Cell]
    depth: Depth
    new_to: frozenset[str]

    def tries(self, stage: CampaignStage) -> int | None:
        """Return how many cells may enter a stage; None for all."""
        if self.depth >= Depth.REMEDIES:
            return None
        return stage.tries if stage.name in self.new_to else stage.tries_later or stage.tries

    def changes(self, stage: CampaignStage, place: int) -> Sequence[Otherwise]:
        """Return the changes of a stack's cell in a stage; `place` is how many cells entered the stage before it.

        If the first `tries` cells found no way to use all GPUs, cells after them are tried without changes.
        """
        on_all = stage.devices == "all"
        if on_all and stage.tries is not None and place >= stage.tries:
            return ()
        is_first = stage.name in self.new_to and place == 0
        whole = is_first or self.depth >= (Depth.ALL_GPUS if on_all else Depth.CHANGES)
        return stage.otherwise if whole or stage.otherwise_later is None else stage.otherwise[: stage.otherwise_later]
