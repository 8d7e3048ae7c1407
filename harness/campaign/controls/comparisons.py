"""Makes runs on this host to find which variables of a cell's preset matter, and whether cells differ."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, TypeVar

from harness.base.errors import InUseError, UserError
from harness.base.files.hashes import json_hash
from harness.base.files.shared_locks import lock_at_once
from harness.base.files.storage import open_regular
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.gpus.unhealthy import refuse_unhealthy
from harness.campaign.planning.stage_evidence import is_of_other_settings
from harness.campaign.recovery import close_leftovers
from harness.campaign.runner import Runner
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import new_run_id
from harness.evidence.verdicts.counting import Counts, counts_of
from harness.evidence.verdicts.scope import scope_of
from harness.matrix.cells import Cell
from harness.matrix.variants import variable_names, variant
from harness.matrix.workloads import Workload
from harness.run.requested_run import Run
from harness.run.spec import resolve_run
from harness.search.minimise import Minimum, VariableSet, minimise_variables
from harness.search.trials import RecountedError, Trial, Trials

# Prefix of the campaigns of searches for the variables that matter.
MINIMISE = "minimise-"
_Found = TypeVar("_Found")


@dataclass
class PlacedTrials:
    """Runs trials of cells on the same GPUs as the planned run `placed`."""

    runner: Runner
    placed: PlannedRun

    def find(self, run_id: str) -> Record | None:
        """Return the record of a trial; None if it was not run."""
        return self.runner.bench.results.record(run_id)

    def is_in_place(self, record: Record) -> bool:
        """Return whether a run was made on the GPUs of the planned run; one on the CPU was, whatever its place."""
        return record.intent.gpus in ((), self.placed.gpus)

    def run(self, trial: Trial) -> Record:
        """Run a trial.

        Raises:
            UserError: when a GPU is unhealthy, and as `Runner.run` does.
        """
        planned = replace(self.placed, cell=trial.cell, repeat=trial.repeat)
        pending = PendingRun(planned, trial.run_id, trial.position)
        refuse_unhealthy(pending, self.runner.bench)
        _, record = self.runner.run([pending], trial.seconds_left)
        return record

    def counts(self) -> Counts:
        """Return how every run of the results folder counts."""
        return counts_of(self.runner.bench.results)


def minimise_cell(
    bench: Bench, placed: PlannedRun, workload: Workload, control: Cell, max_runs: int, display: Display
) -> Minimum:
    """Search for the variables that matter in the preset of the cell of `placed`.

    The same question asked again continues where the search stopped, and may allow more runs.

    Raises:
        UserError: when the preset sets nothing, another process searches it, or the host fails.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    cell = placed.cell
    names = variable_names(cell.preset)
    if not names:
        raise UserError(
            f"cell {cell.id} sets no variables: there is nothing to leave out; "
            "with a failed run, `matrix minimise RUN --over steps` finds how little of it still fails"
        )
    close_leftovers(bench, display)
    bench.make_ready(cell, workload, display)
    environment = bench.environment(cell)
    run = bench.requested_run(placed, "minimise", workload)
    what = [cell.id, environment.hash(cell.preset), run.workload_hash, bench.host.fingerprint, run.gpus]
    data = bench.data_of(workload, environment)
    campaign = f"{MINIMISE}{cell.id[:60]}-{json_hash([*what, data.sha256, environment.image is None])[:8]}"

    def search(passed: Callable[[Cell], bool]) -> Minimum:
        def passed_with(chosen: VariableSet) -> bool:
            return passed(variant(cell, chosen) if chosen else control)

        return minimise_variables(names, passed_with, max_runs, campaign, display.step)

    return searched(PlacedTrials(Runner(bench, workload, display, campaign, max_runs), placed), campaign, search)


def searched(placed: PlacedTrials, campaign: str, search: Callable[[Callable[[Cell], bool]], _Found]) -> _Found:
    """Return what a search finds. The search asks whether runs passed, and starts over when a run is recounted.

    The records are its memory: its questions follow from the answers, so the runs that it asked for before are found by
    their ids.

    Raises:
        UserError: when another process makes these runs, or a GPU or the host fails.
    """
    runner = placed.runner
    with hold_campaign_lock(runner.bench, campaign):
        while True:
            try:
                return search(Trials(placed, campaign, runner.total).passed)
            except RecountedError:
                runner.display.problem("a GPU was found unhealthy after a run that had passed: it now counts as failed")


def describe_minimum(cell: Cell, control: Cell, found: Minimum) -> dict[str, Any]:
    """Return the result of a search as plain values."""
    return {
        "cell": cell.id,
        "control": control.id,
        "of": variable_names(cell.preset),
        "cell_of_variables": variant(cell, found.variables).id if found.variables else None,
        **asdict(found),
        "variables": sorted(found.variables),
        "largest_difference": found.largest_difference,
    }


def add_runs(bench: Bench, placed: Mapping[str, PlannedRun], workload: Workload, runs: int, display: Display) -> str:
    """Run cells until each has `runs` runs that count, earlier runs included; return the workload's hash.

    `placed` has one planned run for each cell. Each round runs the cells in a new random order, so that a drift over
    time favours none of them.

    Raises:
        UserError: when the host fails.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    close_leftovers(bench, display)
    wanted = {}
    for cell, planned in placed.items():
        bench.make_ready(planned.cell, workload, display)
        wanted[cell] = bench.requested_run(planned, "compare", workload)
    lacking = {cell: max(0, runs - _counted(bench, run)) for cell, run in wanted.items()}
    campaign, total = new_run_id("compare"), sum(lacking.values())
    running = PlacedTrials(Runner(bench, workload, display, campaign, total), next(iter(placed.values())))
    trials = Trials(running, campaign, total)
    random = Random()  # noqa: S311
    while short := [cell for cell, run in wanted.items() if _counted(bench, run) < runs]:
        for cell in random.sample(short, len(short)):
            running.placed = placed[cell]
            trials.make(placed[cell].cell)
    return next(iter(wanted.values())).workload_hash


def _counted(bench: Bench, run: Run) -> int:
    """Return the number of runs that may be counted together with a run."""
    intent = resolve_run(run, bench.results.folder_of(run.run_id)).intent
    where = (intent.host.kind, intent.executor, scope_of(intent))
    identity = (intent.cell, intent.environment_hash, intent.workload_hash, *where)
    rows = Index(bench.results).rows()
    counts = counts_of(bench.results, rows)
    return sum(
        counts[row.run_id].counts
        for row in rows
        if (row.cell, row.environment_hash, row.workload_hash, row.host_kind, row.executor, row.scope) == identity
        and not is_of_other_settings(row, bench.host)
    )


@contextmanager
def hold_campaign_lock(bench: Bench, campaign: str) -> Iterator[None]:
    """Hold the lock of a campaign, so that this process alone makes its runs.

    Raises:
        UserError: when another process holds the lock.
    """
    file = bench.results.folder / f".{campaign}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(file, adding=True) as stream:
        if not lock_at_once(stream.fileno(), file):
            raise InUseError(f"{campaign}: another process is running this search; wait for it")
        yield
