"""Runs the controls that tell whether failures come from the cell, its stack, a GPU or the host."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.base.errors import UserError
from harness.base.files.hashes import json_hash
from harness.base.wording import listed
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.display import Display
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls.comparisons import MINIMISE, PlacedTrials, searched
from harness.campaign.recovery import close_leftovers
from harness.campaign.runner import Runner
from harness.diagnosis.rules import load_signatures
from harness.evidence.files.run_files import Intent
from harness.evidence.index import Index
from harness.evidence.isolations import ControlCount, FaultIsolation, write_isolation
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import NO_PROGRESS, Counts, counts_of
from harness.evidence.verdicts.shared_time import HOST_DOWN
from harness.matrix.cells import Cell, Matrix
from harness.matrix.variants import control_of, variable_names
from harness.matrix.workload_options import OF_APP, OWN_DATA
from harness.matrix.workloads import Workload
from harness.search.fault_isolation import CAMPAIGN_ERROR, MOST_RUNS, Arm, Controls, Isolation, Unit, isolate
from harness.search.schedule import OF_THE_STACK

PREFIX = "isolate-"
# Fewest failures of a cell before controls are run: one may be chance, and the controls take some thirty runs.
FEWEST_FAILURES = 2
# Diagnoses that say what became of a GPU or of the host, rather than what caused it.
_OF_THE_HOST = frozenset({"unhealthy-gpu", "unkillable", "driver"})


@dataclass(frozen=True)
class Suspect:
    """A cell with failures of a kind that a host can cause.

    Attributes:
        failures: how many such failures the cell had.
        gpu: the GPU of most of these failures.
        last: the id of the last run that failed so.
    """

    cell: str
    failures: int
    gpu: int
    last: str


@dataclass(frozen=True)
class Question:
    """The cells to run as controls, the GPUs to run them on, and the failures to explain."""

    suspect: Suspect
    cells: Mapping[Unit, Cell]
    gpus: tuple[tuple[int, ...], ...]

    @property
    def controls(self) -> Controls:
        """The controls that these cells and GPUs allow."""
        return Controls("cell" in self.cells, "other-plain" in self.cells, len(self.gpus) > 1)

    @property
    def places_in_words(self) -> str:
        """The cells that are going to be run, and the GPUs."""
        cells = listed([one.id for one in self.cells.values()])
        places = " and on ".join(f"GPU {' and '.join(map(str, one))}" for one in self.gpus)
        return f"in {cells}, on {places}"


def may_be_the_hosts(row: Row, counts: Counts) -> bool:
    """Return whether a run on a GPU failed in a way that a GPU or the host can cause, and that controls can show.

    If the host went down, its power may have failed, or somebody rebooted it: controls can show neither.
    """
    counted = counts[row.run_id]
    if row.device == "cpu" or counted.counts_as != "failed" or row.diagnosis == HOST_DOWN:
        return False
    # A run that somebody ended while it stalled is not recorded as hung, but counts as such.
    hung = row.outcome == "hung" or counted.diagnosis == NO_PROGRESS
    if counted.gpu_fault or hung or row.outcome == "host-fault" or row.diagnosis in _OF_THE_HOST:
        return True
    known = load_signatures().classes.get(row.diagnosis or "")
    return known is not None and known.of_an_unhealthy_gpu


def suspects(rows: Iterable[Row], counts: Counts) -> list[Suspect]:
    """Return the suspects among the cells of these runs, most failures first; runs of controls are left out."""
    failed: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.started):
        if not is_control(row) and may_be_the_hosts(row, counts):
            failed.setdefault(row.cell, []).append(row)
    found = [Suspect(cell, len(of_cell), _most_often(of_cell), of_cell[-1].run_id) for cell, of_cell in failed.items()]
    return sorted(found, key=lambda one: -one.failures)


def is_control(row: Row) -> bool:
    """Return whether a run was a control, made to find out what is at fault."""
    return (row.campaign or "").startswith(PREFIX)


def question_about(
    suspect: Suspect, matrix: Matrix, workload: Workload, bench: Bench, others: Sequence[Cell]
) -> Question:
    """Return the controls to run for a cell; `others` are the `plain` cells of other stacks, the preferred one first.

    Raises:
        UserError: when the cell is not in the matrix, uses no GPU, the GPU that it failed on is not here any more, or
            nothing can be varied.
    """
    cell = matrix.cells.get(suspect.cell)
    if cell is None:
        raise UserError(f"{suspect.cell}: is not in the matrix file; no run can show what is at fault")
    if cell.stack.accelerator == "cpu" or not bench.gpus:
        raise UserError(f"{cell.id} uses no GPU here: there is no GPU whose fault its failures could be")
    plain = control_of(cell, matrix)
    cells: dict[Unit, Cell] = {"cell": cell} if variable_names(cell.preset) else {}
    cells["plain"] = plain if cells else cell
    if other := next((one for one in others if one.stack != cell.stack), None):
        cells["other-plain"] = other
    gpus = _places(suspect.gpu, cell, workload, bench.gpus)
    if len(cells) == 1 and len(gpus) == 1:
        several = len(gpus[0]) > 1
        places = "it runs on all its GPUs at once" if several else "there is no second GPU to run it on"
        raise UserError(
            f"{cell.id} sets nothing, no other stack is known to run here, and {places}: the stack, the GPU and the "
            f"host cannot be told apart; run another stack's plain cell first{_for_example(cell, matrix)}"
        )
    return Question(suspect, cells, gpus)


def _for_example(cell: Cell, matrix: Matrix) -> str:
    """Return a command that runs another stack's plain cell; empty if the matrix file has none."""
    others = (one for one in matrix.cells.values() if one.stack.accelerator == "rocm" and not one.excluded)
    plain = (one.id for one in others if one.stack != cell.stack and not variable_names(one.preset))
    found = next(plain, None)
    return f", for example `matrix run {found}`" if found else ""


def _places(gpu: int, cell: Cell, workload: Workload, gpus: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    if cell.preset.devices:
        return (cell.preset.devices,)
    if workload.strategy != "single":
        return (tuple(sorted(gpus)),)
    if gpu not in gpus:
        raise UserError(
            f"{cell.id} failed on GPU {gpu}, which this host has no more, and without it the causes cannot be told "
            "apart; `matrix doctor` says which GPUs are here"
        )
    others = [one for one in gpus if one != gpu]
    return ((gpu,), *((one,) for one in others[:1]))


def plain_cells(matrix: Matrix, rows: Iterable[Row], host_kind: str) -> list[Cell]:
    """Return the `plain` cells that ran on a GPU of this kind of host, those that completed most often first.

    Runs that failed for a reason of their own stack, such as no code for this GPU, say nothing of another stack and are
    ignored. So are imported runs: a stack that only ran elsewhere would have to be downloaded first.
    """
    completed: Counter[str] = Counter()
    for row in rows:
        here = row.host_kind == host_kind and not row.imported
        if here and row.device != "cpu" and row.diagnosis not in OF_THE_STACK:
            completed[row.cell] += row.outcome == "completed"
    cells = (matrix.cells[cell] for cell, _ in completed.most_common() if cell in matrix.cells)
    usable = (cell for cell in cells if cell.stack.accelerator == "rocm" and not cell.excluded)
    return [cell for cell in usable if not variable_names(cell.preset)]


def hint(
    rows: Iterable[Row], counts: Counts, matrix: Matrix, gpus: int, answers: Iterable[FaultIsolation] = ()
) -> str | None:
    """Return a hint to run `matrix isolate` for these runs of one machine; None if no failure is left to explain.

    `gpus`: the number of GPUs of that machine.
    `answers`: the earlier answers for it.
    """
    rows = list(rows)
    by_id = {row.run_id: row for row in rows}
    answers = list(answers)
    asked = {one.cell: one.at for one in answers}
    # What fails the plain cell of a stack fails its other cells, too.
    of_stack = {one.stack: one.at for one in answers if one.cause == "stack"}

    def is_answered(last: Row) -> bool:
        return last.started <= max(asked.get(last.cell, 0.0), of_stack.get(last.stack, 0.0))

    new = [one for one in suspects(rows, counts) if not is_answered(by_id[one.last])]
    found = [one for one in new if _can_be_varied(by_id[one.last], rows, matrix, gpus)]
    if not found:
        return None
    # Where runs used all GPUs together, controls cannot tell the GPUs apart.
    first, more = min(found, key=lambda one: len(json.loads(by_id[one.last].gpus))), len(found) - 1
    failed = "1 run of it" if first.failures == 1 else f"{first.failures} runs of it"
    others = f", as did {more} other cells" if more > 1 else ", as did 1 other cell" if more else ""
    last, command = by_id[first.last], f"`matrix isolate {first.cell}`"
    if last.own_program and last.workload.startswith(OF_APP):
        # Without --workload this project's own training would run, which may not fail at all.
        command = f"with your program as a workload of the matrix file, `matrix isolate {first.cell} --workload NAME`"
    return (
        f"{first.cell}: {failed} failed in a way that a GPU or the host can cause{others}; "
        f"{command} tells cell, stack, GPU and host apart"
    )


def _can_be_varied(failed: Row, rows: Iterable[Row], matrix: Matrix, gpus: int) -> bool:
    """Return whether controls of a run can differ from it: `question_about` refuses others."""
    cell = matrix.cells.get(failed.cell)
    if cell is None:
        return False
    on_one = len(json.loads(failed.gpus)) == 1 and not cell.preset.devices
    if variable_names(cell.preset) or (on_one and gpus > 1):
        return True
    return any(cell.stack.name != failed.stack for cell in plain_cells(matrix, rows, failed.host_kind))


def isolate_fault(
    bench: Bench, question: Question, workload: Workload, display: Display, max_runs: int = MOST_RUNS
) -> FaultIsolation:
    """Run the controls, write down what they show, and return it; the same question continues where it stopped.

    Only the controls' own runs are judged, never the failures that raised the question. If an earlier version of the
    harness gave an answer, it is computed again from the records of its runs.

    Raises:
        UserError: when another process runs these controls, or a GPU or the host fails.
        KeyboardInterrupt: after the current run was recorded as interrupted.
    """
    close_leftovers(bench, display)
    campaign = _campaign(bench, question, workload, display)
    # One PlacedTrials for all GPUs, so that it notices when a run on another GPU is recounted.
    placed = PlacedTrials(Runner(bench, workload, display, campaign, max_runs), _placed(question, question.gpus[0]))

    def search(passed: Callable[[Cell], bool]) -> Isolation:
        def passed_on(arm: Arm) -> bool:
            placed.placed = _placed(question, question.gpus[arm.gpu])
            return passed(question.cells[arm.unit])

        return isolate(question.controls, passed_on, max_runs, CAMPAIGN_ERROR, campaign)

    answer = _answer(bench, question, workload, campaign, searched(placed, campaign, search))
    write_isolation(bench.results, answer)
    return answer


def _campaign(bench: Bench, question: Question, workload: Workload, display: Display) -> str:
    """Make the cells ready and return the id of the campaign, which is the same for the same question."""
    what: list[object] = [question.suspect.last, bench.host.fingerprint, question.gpus, bench.executor_name]
    for cell in question.cells.values():
        bench.make_ready(cell, workload, display)
        what += [cell.id, bench.environment(cell).hash(cell.preset)]
    planned = _placed(question, question.gpus[0])
    what.append(bench.requested_run(planned, "isolate", workload).workload_hash)
    return f"{PREFIX}{question.suspect.cell[:60]}-{json_hash(what)[:8]}"


def _placed(question: Question, gpus: tuple[int, ...]) -> PlannedRun:
    placement = f"-gpu{gpus[0]}" if len(question.gpus) > 1 else ""
    return PlannedRun(question.cells["plain"], 1, gpus, placement)


def _answer(bench: Bench, question: Question, workload: Workload, campaign: str, found: Isolation) -> FaultIsolation:
    counts = tuple(
        ControlCount(cell=question.cells[arm.unit].id, gpus=question.gpus[arm.gpu], passes=one.passes, runs=one.runs)
        for arm, one in found.counts.items()
    )
    return FaultIsolation(
        id=campaign,
        cell=question.suspect.cell,
        stack=question.cells["plain"].stack.name,
        workload=workload.name,
        machine=bench.host.machine,
        failures=question.suspect.failures,
        cause=found.cause,
        sound=found.sound,
        possible=tuple(sorted(found.possible)),
        not_varied=question.controls.not_varied,
        runs_left=found.runs_left,
        error=CAMPAIGN_ERROR,
        counts=counts,
        at=time.time(),
    )


def suspect_of(cell: str, workload: str, bench: Bench) -> Suspect:
    """Return what the records of this machine say of a cell, even if the cell has no failure of such a kind.

    `workload`: the name of that whose runs count.
    """
    rows = [row for row in Index(bench.results).rows() if row.machine == bench.host.machine and not row.imported]
    mine = [row for row in rows if row.cell == cell and row.workload == workload]
    found = suspects(mine, counts_of(bench.results))
    return found[0] if found else Suspect(cell, 0, bench.gpus[0] if bench.gpus else 0, "")


def last_failure(results: Results, machine: str, matrix: Matrix, cell: str, *, of_search: bool = True) -> Intent | None:
    """Return the newest run of a cell on this machine that failed in a way that a GPU or the host can cause.

    None if there is none of a workload of the matrix file, and none of a training of the user's own data. A run of
    `matrix minimise` comes after all others, and does not count without `of_search`: a search that took its own runs
    would not continue when it is called again.
    """
    rows = [row for row in Index(results).rows() if row.machine == machine and not row.imported]
    known, counts = (*matrix.workloads, OWN_DATA), counts_of(results)
    mine = [row for row in rows if row.cell == cell and row.workload in known]
    others = [row for row in mine if not (row.campaign or "").startswith(MINIMISE)]
    found = suspects(others, counts) or (suspects(mine, counts) if of_search else [])
    record = results.record(found[0].last) if found else None
    return record.intent if record else None


def _most_often(rows: Sequence[Row]) -> int:
    """Return the GPU that most of these runs used; 0 if they used none."""
    gpus: Counter[int] = Counter(gpu for row in rows for gpu in json.loads(row.gpus))
    return gpus.most_common(1)[0][0] if gpus else 0
