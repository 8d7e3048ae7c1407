"""Tests of the search for the variables that matter, in the records of a results folder. Nothing is really run."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls.comparisons import describe_minimum, minimise_cell
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import append_steps
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import counts_of
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.matrix.variants import control_of, variable_names
from harness.search.minimise import Minimum
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

CELL = "cpu-notes-dockerfile"
CAUSE = ("HSA_XNACK", "PYTORCH_ROCM_ARCH")


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, make_record: Callable[..., Record]) -> ScriptedBench:
    """Return a bench on which cells with all variables of CAUSE mostly fail, and every other cell passes."""
    random = Random(3)

    def outcome_of(cell: Cell) -> str:
        both = cell.preset.variables.keys() >= set(CAUSE)
        return "failed" if both and random.random() < 0.8 else "completed"

    results = Results(tmp_path / "results")
    bench = ScriptedBench(results, ProcessExecutor(), host, ())
    bench.make_record, bench.outcome_of, bench.made = make_record, outcome_of, []
    return bench


def search(bench: ScriptedBench, matrix: Matrix, cell: str = CELL, max_runs: int = 300) -> Minimum:
    chosen = matrix.cells[cell]
    control = control_of(chosen, matrix)
    display = RecordingDisplay()
    return minimise_cell(bench, PlannedRun(chosen, 1), matrix.workloads["quick"], control, max_runs, display)


@pytest.mark.slow
def test_the_cause_is_found_and_every_run_is_recorded(bench: ScriptedBench, matrix: Matrix) -> None:
    found = search(bench, matrix)
    assert found.conclusion == "found"
    assert found.variables == set(CAUSE)
    records = list(bench.results.records())
    assert len(records) == found.runs == len(bench.made)
    cells = {record.intent.cell for record in records}
    assert {CELL, f"{CELL}~nothing", f"{CELL}~HSA_XNACK", f"{CELL}~HSA_XNACK+PYTORCH_ROCM_ARCH"} <= cells
    assert len({record.intent.campaign for record in records}) == 1


@pytest.mark.slow
def test_the_plain_cell_is_the_control_where_it_can_be(bench: ScriptedBench, matrix: Matrix) -> None:
    bench.outcome_of = lambda cell: "failed" if "GPU_MAX_HW_QUEUES" in cell.preset.variables else "completed"
    assert search(bench, matrix, "cpu-notes-stable").variables == {"GPU_MAX_HW_QUEUES"}
    cells = {record.intent.cell for record in bench.results.records()}
    assert "cpu-plain" in cells
    assert "cpu-notes-stable~nothing" not in cells


@pytest.mark.slow
def test_it_continues_where_it_was_interrupted(bench: ScriptedBench, matrix: Matrix) -> None:
    outcome_of, left = bench.outcome_of, 23

    def until_killed(cell: Cell) -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return outcome_of(cell)

    bench.outcome_of = until_killed
    with pytest.raises(KeyboardInterrupt):
        search(bench, matrix)
    assert len(bench.made) == 23
    bench.outcome_of, bench.made = outcome_of, []
    found = search(bench, matrix)
    assert found.variables == set(CAUSE)
    assert len(bench.made) == found.runs - 23
    bench.made = []
    assert search(bench, matrix) == found
    assert bench.made == []


@pytest.mark.slow
def test_more_runs_continue_with_those_that_were_made(bench: ScriptedBench, matrix: Matrix) -> None:
    few = search(bench, matrix, max_runs=30)
    assert (few.conclusion, few.runs) == ("not-enough-runs", 30)
    bench.made = []
    many = search(bench, matrix)
    assert many.conclusion == "found"
    assert len(bench.made) == many.runs - 30


def test_another_question_is_another_search(bench: ScriptedBench, matrix: Matrix, dual_host: HostFacts) -> None:
    search(bench, matrix, max_runs=10)
    bench.made = []
    bench.host = dual_host.model_copy(update={"fingerprint": "another"})
    assert search(bench, matrix, max_runs=10).runs == len(bench.made) > 0


@pytest.mark.slow
def test_a_run_that_turns_out_to_have_poisoned_its_gpu_is_taken_back(
    bench: ScriptedBench, matrix: Matrix, make_step: Callable[..., HealthStep]
) -> None:
    """The probe before the tenth run finds that the ninth run has left the GPU unhealthy."""
    chosen = matrix.cells[CELL]
    outcome_of = bench.outcome_of

    def then_it_shows(cell: Cell) -> str:
        if len(bench.made) == 9:
            at = 1e9 + len(bench.made)
            before = {"run_id": "the tenth", "when": "recheck", "at": at - 1.5}
            append_steps(bench.results, [make_step(good=False, **before), make_step(good=True, **before)])
        return outcome_of(cell)

    bench.outcome_of = then_it_shows
    display = RecordingDisplay()
    place = PlannedRun(chosen, 1, (0,))
    found = minimise_cell(bench, place, matrix.workloads["quick"], control_of(chosen, matrix), 300, display)
    assert any("it now counts as failed" in text for text in display.lines)
    assert found.variables == set(CAUSE)
    # The ninth run counts as failed, and is not made again.
    assert counts_of(bench.results)[bench.made[8]].gpu_fault
    assert not any("-again2" in run_id for run_id in bench.made)


def test_a_preset_that_sets_nothing_is_refused(bench: ScriptedBench, matrix: Matrix) -> None:
    with pytest.raises(UserError, match="nothing to leave out; with a failed run, `matrix minimise RUN --over"):
        search(bench, matrix, "cpu-plain")


def test_two_processes_do_not_search_at_once(bench: ScriptedBench, matrix: Matrix) -> None:
    search(bench, matrix, max_runs=2)
    (lock,) = bench.results.folder.glob(".minimise-*.lock")
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="another process"):
            search(bench, matrix)


@pytest.mark.slow
def test_what_was_found_as_plain_values(bench: ScriptedBench, matrix: Matrix) -> None:
    chosen = matrix.cells[CELL]
    found = describe_minimum(chosen, control_of(chosen, matrix), search(bench, matrix))
    assert found["of"] == variable_names(chosen.preset)
    assert found["cell_of_variables"] == f"{CELL}~HSA_XNACK+PYTORCH_ROCM_ARCH"
    assert found["variables"] == sorted(CAUSE)
    assert found["with_all"]["runs"] == found["with_none"]["runs"] > 0
