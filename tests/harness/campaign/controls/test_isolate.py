"""Tests of isolating a fault with controls, from the records of a results folder. Nothing is really run."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls.isolate import (
    Question,
    Suspect,
    hint,
    is_control,
    isolate_fault,
    may_be_the_hosts,
    plain_cells,
    question_about,
    suspects,
)
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.index import Index
from harness.evidence.isolations import FaultIsolation, read_isolations, sentences
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

CELL, PLAIN = "rocm6.3-torch2.9.1-notes-stable", "rocm6.3-torch2.9.1-plain"
OTHER = "rocm6.2-torch2.5.1-plain"


class OnGpus(ScriptedBench):
    """A bench whose `now` names the GPUs of the current run, for use in `outcome_of`."""

    now: tuple[int, ...] = ()

    def run_cell(self, run: Any, *rest: object) -> Record:
        self.now = run.gpus
        return super().run_cell(run, *rest)


@pytest.fixture
def bench(tmp_path: Path, dual_host: HostFacts, make_record: Callable[..., Record]) -> OnGpus:
    """Return a bench on which every run completes."""
    bench = OnGpus(Results(tmp_path / "results"), ProcessExecutor(), dual_host, (1, 0))
    bench.make_record, bench.outcome_of, bench.made = make_record, lambda _: "completed", []
    return bench


@pytest.fixture
def gpu_row(make_record: Callable[..., Record], dual_host: HostFacts) -> Callable[..., Row]:
    """Return a function that makes the row of a run of CELL on GPU 0."""

    def make(run_id: str, outcome: str = "completed", diagnosis: str | None = None, **intent: Any) -> Row:
        known = {"cell": CELL, "device": "cuda", "gpus": (0,), "host": dual_host, **intent}
        return Row.of(make_record(run_id, outcome, diagnosis, **known))

    return make


def question_of(bench: OnGpus, matrix: Matrix, cell: str = CELL, last: str = "r9", workload: str = "quick") -> Question:
    others = [matrix.cells[OTHER]]
    return question_about(Suspect(cell, 3, 0, last), matrix, matrix.workloads[workload], bench, others)


def answer(bench: OnGpus, matrix: Matrix, question: Question, max_runs: int = 40) -> FaultIsolation:
    return isolate_fault(bench, question, matrix.workloads["quick"], RecordingDisplay(), max_runs)


def only_cell(cell: Cell) -> str:
    return "failed" if cell.id == CELL else "completed"


def test_a_bad_preset_is_named_and_written_down(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = only_cell
    found = answer(bench, matrix, question_of(bench, matrix))
    assert (found.cause, found.answered, found.runs) == ("cell", True, len(bench.made))
    assert {(one.cell, one.gpus) for one in found.counts} == {
        (cell, gpus) for cell in (CELL, PLAIN, OTHER) for gpus in ((0,), (1,))
    }
    assert read_isolations(bench.results) == [found]
    assert found.conclusion == "the controls say the cell (its preset)"
    assert f"{PLAIN} on GPU 1: " in sentences([found])[0]
    assert all(is_control(row) for row in Index(bench.results).rows())


def test_a_bad_gpu_is_named_by_its_number(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = lambda _: "failed" if bench.now == (0,) else "completed"
    found = answer(bench, matrix, question_of(bench, matrix))
    assert (found.cause, found.conclusion) == ("gpu", "the controls say GPU 0")
    bench.outcome_of = lambda _: "failed" if bench.now == (1,) else "completed"
    assert answer(bench, matrix, question_of(bench, matrix, last="later")).conclusion == "the controls say GPU 1"


def test_a_bad_stack_and_a_bad_host(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = lambda cell: "completed" if cell.id == OTHER else "failed"
    assert (
        answer(bench, matrix, question_of(bench, matrix)).conclusion == "the controls say the stack rocm6.3-torch2.9.1"
    )
    bench.outcome_of = lambda _: "failed"
    assert answer(bench, matrix, question_of(bench, matrix, last="later")).conclusion == "the controls say the host"


def test_a_control_that_fails_by_itself_is_not_hidden(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = lambda cell: "failed" if cell.id == PLAIN else "completed"
    found = answer(bench, matrix, question_of(bench, matrix))
    assert (found.cause, found.sound) == (None, True)
    assert found.conclusion == (
        "the controls do not find it to fail half of its runs: its failures did not come back as often; "
        f"but at most half of the runs of {PLAIN} on GPU 0 and {PLAIN} on GPU 1 passed"
    )
    bench.outcome_of = lambda _: "completed"
    assert "find nothing that fails half" in answer(bench, matrix, question_of(bench, matrix, last="later")).conclusion


def test_it_continues_where_it_was_interrupted_and_asks_again_after_new_failures(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = only_cell

    def until_killed(cell: Cell) -> str:
        if len(bench.made) == 7:
            raise KeyboardInterrupt
        return only_cell(cell)

    bench.outcome_of = until_killed
    with pytest.raises(KeyboardInterrupt):
        answer(bench, matrix, question_of(bench, matrix))
    bench.outcome_of = only_cell
    found = answer(bench, matrix, question_of(bench, matrix))
    assert found.runs == len(bench.made)
    answer(bench, matrix, question_of(bench, matrix))
    assert found.runs == len(bench.made)
    answer(bench, matrix, question_of(bench, matrix, last="a new failure"))
    assert found.runs < len(bench.made)


def test_too_few_runs_say_what_is_left_and_more_continue(bench: OnGpus, matrix: Matrix) -> None:
    bench.outcome_of = only_cell
    few = answer(bench, matrix, question_of(bench, matrix), max_runs=6)
    assert not few.answered
    assert few.conclusion.startswith("not told apart yet (the cell (its preset)")
    assert few.conclusion.endswith("more runs would")
    assert answer(bench, matrix, question_of(bench, matrix)).cause == "cell"
    assert len(read_isolations(bench.results)) == 1


@pytest.mark.slow
def test_a_run_that_poisoned_its_gpu_is_taken_back(
    bench: OnGpus, matrix: Matrix, make_step: Callable[..., HealthStep]
) -> None:
    def then_it_shows(_: Cell) -> str:
        if len(bench.made) == 9:
            ids = {"run_id": "the tenth", "when": "recheck", "at": 1e9 + 4.5}
            steps = [make_step(good=good, gpu=gpu, **ids) for gpu in (0, 1) for good in (False, True)]
            append_steps(bench.results, steps)
        return "completed"

    bench.outcome_of = then_it_shows
    display = RecordingDisplay()
    found = isolate_fault(bench, question_of(bench, matrix), matrix.workloads["quick"], display)
    assert any("it now counts as failed" in line for line in display.lines)
    assert sum(one.runs - one.passes for one in found.counts) == 2


def test_each_count_is_of_runs_on_that_gpu_after_a_recount(
    bench: OnGpus, matrix: Matrix, make_step: Callable[..., HealthStep]
) -> None:
    def then_it_shows(cell: Cell) -> str:
        if len(bench.made) == 12:
            ids = {"run_id": "another", "when": "recheck", "at": 1e9 + 6.5}
            append_steps(bench.results, [make_step(good=good, gpu=0, **ids) for good in (False, True)])
        return "failed" if cell.id == CELL and len(bench.made) % 2 else "completed"

    bench.outcome_of = then_it_shows
    found = answer(bench, matrix, question_of(bench, matrix), max_runs=16)
    made = Counter((row.cell, tuple(json.loads(row.gpus))) for row in Index(bench.results).rows())
    assert all(one.runs <= made[one.cell, one.gpus] for one in found.counts), "a run stood for one on another GPU"
    assert found.runs == 16


def test_what_cannot_be_varied_is_said(bench: OnGpus, matrix: Matrix) -> None:
    bench.gpus = (0,)
    workload = matrix.workloads["quick"]
    question = question_about(Suspect(CELL, 3, 0, "r9"), matrix, workload, bench, [])
    assert question.controls.not_varied == ("stack", "gpu")
    bench.outcome_of = lambda _: "failed"
    found = answer(bench, matrix, question)
    assert found.conclusion == (
        "the controls say the host or its stack (no other was run) or its GPU (no other was run)"
    )
    with pytest.raises(UserError, match=r"cannot be told apart; .* cell first, for example `matrix run rocm\S+-plain`"):
        question_about(Suspect(PLAIN, 3, 0, "r9"), matrix, workload, bench, [])
    with pytest.raises(UserError, match="uses no GPU"):
        question_about(Suspect("cpu-plain", 3, 0, "r9"), matrix, workload, bench, [])
    bench.gpus = ()
    with pytest.raises(UserError, match="uses no GPU"):
        question_about(Suspect(CELL, 3, 0, "r9"), matrix, workload, bench, [])


def test_a_gpu_that_is_gone_cannot_be_told_apart(bench: OnGpus, matrix: Matrix) -> None:
    workload, others = matrix.workloads["quick"], [matrix.cells[OTHER]]
    bench.gpus = (0,)
    with pytest.raises(UserError, match="failed on GPU 1, which this host has no more"):
        question_about(Suspect(CELL, 3, 1, "r9"), matrix, workload, bench, others)
    with pytest.raises(UserError, match="GPU 7: this host has none of that number"):
        bench.has_free_gpus_for(PlannedRun(matrix.cells[CELL], 1, (7,)), "r9")


def test_runs_on_several_gpus_at_once_tell_none_from_the_other(bench: OnGpus, matrix: Matrix) -> None:
    both = next(one for one in matrix.workloads.values() if one.strategy != "single")
    question = question_about(Suspect(CELL, 3, 0, "r9"), matrix, both, bench, [])
    assert question.gpus == ((0, 1),)
    bench.outcome_of = lambda _: "failed"
    assert answer(bench, matrix, question).conclusion == (
        "the controls say the host or its stack (no other was run) "
        "or its GPUs or what connects them (all runs used them together)"
    )


@pytest.mark.parametrize(
    ("outcome", "diagnosis", "is_one"),
    [
        ("completed", None, False),
        ("hung", "hang-copy", True),
        ("host-fault", "unhealthy-gpu", True),
        ("host-fault", "host-down", False),
        ("failed", "gpu-reset", True),
        ("failed", "no-device", True),
        ("failed", "missing-arch", False),
        ("failed", "app-error", False),
        ("failed", "a later version's", False),
    ],
)
def test_which_failures_a_host_can_cause(
    outcome: str, diagnosis: str | None, is_one: bool, gpu_row: Callable[..., Row]
) -> None:
    row = gpu_row("r1", outcome, diagnosis)
    assert may_be_the_hosts(row, count_runs([row])) == is_one
    on_cpu = gpu_row("r1", outcome, diagnosis, device="cpu", gpus=())
    assert not may_be_the_hosts(on_cpu, count_runs([on_cpu]))


@pytest.mark.parametrize(("idle", "is_one"), [(170.0, True), (5.0, False)])
def test_a_run_that_stalled_when_ctrl_c_ended_it_may_be_the_hosts(
    idle: float, is_one: bool, gpu_row: Callable[..., Row]
) -> None:
    row = gpu_row("r1", "interrupted")._replace(interrupted_by="ctrl-c", idle_seconds=idle, idle_limit=180.0)
    assert may_be_the_hosts(row, count_runs([row])) == is_one


def test_the_cell_with_most_failures_is_suspected_on_the_gpu_of_most(
    gpu_row: Callable[..., Row], matrix: Matrix
) -> None:
    rows = [
        gpu_row("r1", "hung", started=1.0),
        gpu_row("r2", "hung", gpus=(1,), started=2.0),
        gpu_row("r3", "hung", gpus=(1,), started=3.0),
        gpu_row("r4", "hung", cell=PLAIN, started=4.0),
        gpu_row("r5", "hung", cell=OTHER, campaign="isolate-x", started=5.0),
    ]
    counts = count_runs(rows)
    assert suspects(rows, counts) == [Suspect(CELL, 3, 1, "r3"), Suspect(PLAIN, 1, 0, "r4")]
    sentence = hint(rows, counts, matrix, 2)
    assert sentence is not None
    assert sentence.startswith(f"{CELL}: 3 runs of it failed")
    assert "as did 1 other cell" in sentence
    assert hint([rows[0]], counts, matrix, 2, [cast("Any", _Answer(CELL, 1.5))]) is None
    assert hint(rows[:2], counts, matrix, 2, [cast("Any", _Answer(CELL, 1.5))]) is not None
    of_stack = _Answer(PLAIN, 4.5, rows[0].stack, "stack")
    assert hint(rows, counts, matrix, 2, [cast("Any", of_stack)]) is None
    for other in (replace(of_stack, at=2.5), replace(of_stack, cause="gpu"), replace(of_stack, stack="another")):
        assert hint(rows, counts, matrix, 2, [cast("Any", other)]) is not None


def test_no_hint_leads_to_a_question_that_is_refused(
    bench: OnGpus, matrix: Matrix, gpu_row: Callable[..., Row]
) -> None:
    suspect, workload = Suspect(PLAIN, 1, 0, "r1"), matrix.workloads["production"]
    with pytest.raises(UserError, match="no other stack is known to run here, and it runs on all its GPUs at once"):
        question_about(suspect, matrix, workload, bench, [])
    row = gpu_row("r1", "hung", cell=PLAIN, stack="rocm6.3-torch2.9.1", preset="plain", gpus=(0, 1))
    alone = row._replace(gpus="[0]")
    other = gpu_row("r2", cell=OTHER, stack="rocm6.2-torch2.5.1", preset="plain")
    unfit, gone = other._replace(outcome="failed", diagnosis="missing-arch"), other._replace(cell="rocm1.0-plain")
    # It sets nothing, and runs on one GPU only.
    fixed = alone._replace(cell="rocm6.3-torch2.9.1-notes-device-0", preset="notes-device-0")
    for rows, gpus in (
        ([row], 2),
        ([alone], 1),
        ([row, unfit], 2),
        ([alone, unfit], 1),
        ([row, gone], 2),
        ([fixed], 2),
        ([gone], 2),
    ):
        assert hint(rows, count_runs(rows), matrix, gpus) is None
    for rows, gpus in (
        ([row, other], 2),
        ([row._replace(cell=CELL)], 2),
        ([alone], 2),
        ([alone, other], 1),
    ):
        assert hint(rows, count_runs(rows), matrix, gpus) is not None


def test_the_hint_names_a_cell_that_failed_on_one_gpu_rather_than_on_all_together(
    matrix: Matrix, gpu_row: Callable[..., Row]
) -> None:
    together = gpu_row("r1", "hung", cell=CELL, gpus=(0, 1))
    alone = gpu_row("r2", "hung", cell=PLAIN, stack="rocm6.3-torch2.9.1", preset="plain")
    rows = [together, together._replace(run_id="r3"), alone]
    found = hint(rows, count_runs(rows), matrix, 2)
    assert found is not None
    assert found.startswith(f"{PLAIN}: 1 run of it failed")


def test_for_a_program_given_with_app_the_hint_does_not_run_this_projects_training(
    gpu_row: Callable[..., Row], matrix: Matrix
) -> None:
    row = gpu_row("r1", "hung")._replace(own_program=True, workload="app-mine")
    given = hint([row], count_runs([row]), matrix, 2)
    assert given is not None
    assert f"as a workload of the matrix file, `matrix isolate {CELL} --workload NAME` tells" in given
    named = row._replace(workload="mine")
    assert f"; `matrix isolate {CELL}` tells" in (hint([named], count_runs([named]), matrix, 2) or "")


@dataclass(frozen=True)
class _Answer:
    cell: str
    at: float
    stack: str = ""
    cause: str = "cell"


def test_the_other_stack_is_the_plain_one_that_completed_most(
    gpu_row: Callable[..., Row], bench: OnGpus, matrix: Matrix
) -> None:
    rows = [
        gpu_row("r1", cell=OTHER),
        gpu_row("r2", cell=CELL),
        gpu_row("r3", "failed", "missing-arch", cell="rocm7.0-torch2.10.0-plain"),
        gpu_row("r4", "hung", cell="rocm6.3-torch2.8.0-plain"),
        gpu_row("r5", cell="cpu-plain", device="cpu", gpus=()),
        *(gpu_row(f"i{number}", cell="rocm7.0-torch2.10.0-plain")._replace(imported=True) for number in range(9)),
    ]
    assert [cell.id for cell in plain_cells(matrix, rows, bench.host.kind)] == [OTHER, "rocm6.3-torch2.8.0-plain"]
    excluded = {OTHER: replace(matrix.cells[OTHER], excluded="it hangs")}
    fewer = SimpleNamespace(cells={**matrix.cells, **excluded})
    assert [cell.id for cell in plain_cells(cast("Any", fewer), rows, bench.host.kind)] == ["rocm6.3-torch2.8.0-plain"]
