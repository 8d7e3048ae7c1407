"""Tests of runs that are compared and are repeated until they count. Nothing is really run."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.base.errors import UserError
from harness.evidence.files.run_files import Record
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import FAILED, NOT_BEGUN, REFUSED, Counts, count_runs
from harness.matrix.cells import Cell, Matrix
from harness.search.trials import RecountedError, Trial, Trials

PLAIN, MORE = "rocm6.3-torch2.9.1-plain", "rocm6.3-torch2.9.1-no-sdma"


@dataclass
class ScriptedTrialRunner:
    """A runner of trials with these outcomes to come; the first run takes no time, the second one a second."""

    make_record: Callable[..., Record]
    records: dict[str, Record]
    outcomes: list[str]
    made: list[Trial] = field(default_factory=list)
    poisoning: set[str] = field(default_factory=set)
    poisoning_later: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)

    def find(self, run_id: str) -> Record | None:
        return self.records.get(run_id)

    def is_in_place(self, record: Record) -> bool:
        return record.intent.run_id not in self.elsewhere

    def run(self, trial: Trial) -> Record:
        outcome, _, diagnosis = self.outcomes.pop(0).partition(" ")
        record = self.make_record(trial.run_id, outcome, diagnosis or None, cell=trial.cell.id, repeat=trial.repeat)
        self.records[trial.run_id] = record.model_copy(update={"finished": 1e9 + len(self.made)})
        self.made.append(trial)
        self.poisoning |= self.poisoning_later
        return self.records[trial.run_id]

    def counts(self) -> Counts:
        return {**count_runs(map(Row.of, self.records.values())), **dict.fromkeys(self.poisoning, FAILED)}

    @property
    def ids(self) -> list[str]:
        return [trial.run_id for trial in self.made]


@pytest.fixture
def script(make_record: Callable[..., Record]) -> Callable[..., ScriptedTrialRunner]:
    """Return a function that makes scripted runners which share their records."""
    records: dict[str, Record] = {}
    return lambda *outcomes: ScriptedTrialRunner(make_record, records, list(outcomes))


@pytest.fixture
def cell(matrix: Matrix) -> Cell:
    return matrix.cells[PLAIN]


def passes(runner: ScriptedTrialRunner, cell: Cell, runs: int) -> list[bool]:
    trials = Trials(runner, "c", 9)
    return [trials.passed(cell) for _ in range(runs)]


def test_what_completed_passed_and_what_failed_or_hung_did_not(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    runner = script("completed", "failed", "hung")
    assert passes(runner, cell, 3) == [True, False, False]
    assert [(trial.repeat, trial.position) for trial in runner.made] == [(1, 1), (2, 2), (3, 3)]


def test_what_was_made_before_is_not_made_again(script: Callable[..., ScriptedTrialRunner], cell: Cell) -> None:
    assert passes(script("completed", "failed"), cell, 2) == [True, False]
    again = script("hung")
    assert passes(again, cell, 3) == [True, False, False]
    assert len(again.made) == 1


def test_the_time_left_is_expected_from_the_runs_that_were_made_before(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    first = script("completed", "failed")
    assert passes(first, cell, 2) == [True, False]
    assert [trial.seconds_left for trial in first.made] == [None, 0.0]
    again = script("completed")
    assert passes(again, cell, 3) == [True, False, True]
    # The first run took no time and the second a second, so the seven that are left should take half a second each.
    assert [trial.seconds_left for trial in again.made] == [0.5 * 7]


def test_another_cell_at_the_same_position_is_another_run(
    script: Callable[..., ScriptedTrialRunner], cell: Cell, matrix: Matrix
) -> None:
    assert passes(script("completed"), cell, 1) == [True]
    assert passes(script("failed"), matrix.cells[MORE], 1) == [False]


def test_a_host_fault_has_failed(script: Callable[..., ScriptedTrialRunner], cell: Cell) -> None:
    runner = script("host-fault", "completed")
    assert passes(runner, cell, 2) == [False, True]
    assert len(runner.ids) == 2


def test_a_run_that_was_not_begun_ends_the_search_and_is_made_again_later(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    first = script(f"host-fault {NOT_BEGUN}")
    with pytest.raises(UserError, match="fix the host"):
        passes(first, cell, 1)
    again = script("completed")
    assert passes(again, cell, 1) == [True]
    assert again.ids == [f"{first.ids[0]}-again2"]


def test_a_search_ends_where_the_app_refuses_its_command(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    runner = script(f"failed {REFUSED}")
    with pytest.raises(UserError, match="the app refuses this command"):
        passes(runner, cell, 1)
    assert len(runner.ids) == 1


def test_an_interrupted_run_is_made_again(script: Callable[..., ScriptedTrialRunner], cell: Cell) -> None:
    runner = script("interrupted", "failed")
    assert passes(runner, cell, 1) == [False]
    assert runner.ids[1] == f"{runner.ids[0]}-again2"


def test_a_run_that_turns_out_to_have_poisoned_its_gpu_is_taken_back(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    runner = script("completed", "completed")
    trials = Trials(runner, "c", 9)
    assert trials.passed(cell)
    runner.poisoning_later = {runner.ids[0]}
    with pytest.raises(RecountedError):
        trials.passed(cell)
    again = script()
    again.poisoning = runner.poisoning
    assert passes(again, cell, 2) == [False, True]


def test_a_run_on_another_gpu_does_not_stand_for_one_at_the_same_position(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    first = script("completed")
    assert passes(first, cell, 1) == [True]
    again = script("failed")
    again.elsewhere = {*first.ids}
    assert passes(again, cell, 1) == [False]
    assert again.ids == [f"{first.ids[0]}-again2"]
    # Where the first GPU is asked for again, its run is found.
    assert passes(script(), cell, 1) == [True]


def test_runs_that_are_only_made_go_on_after_one_was_taken_back(
    script: Callable[..., ScriptedTrialRunner], cell: Cell
) -> None:
    # The app accepted the same command before, so the run counts as failed.
    runner = script("completed", "completed", f"failed {REFUSED}")
    trials = Trials(runner, "c", 9)
    runner.poisoning_later = {trials.make(cell)}
    assert [trials.make(cell), trials.make(cell)] == runner.ids[1:]
