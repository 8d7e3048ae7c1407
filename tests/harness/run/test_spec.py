"""A drill is in the command and the intent, and in nothing that evidence is told apart by."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.environments.environment import Environment
from harness.evidence.app_files import InputFile
from harness.evidence.run_files import Intent
from harness.matrix.cells import Matrix, SyntheticData, Workload
from harness.run.spec import Run


@pytest.fixture
def run(matrix: Matrix, make_intent: Callable[..., Intent]) -> Run:
    workload = Workload(description="d", synthetic=SyntheticData(sessions=30), epochs=1, time_limit=60)
    data = InputFile(path="/data.csv", sha256="0" * 64)
    environment = Environment(Path("/none/python"), {}, {}, "cpu")
    return Run("r1", matrix.cells["cpu-plain"], workload, data, environment, make_intent().host)


def test_the_app_is_told_of_a_fault_that_it_injects_and_of_no_other(run: Run, tmp_path: Path) -> None:
    usual = run.intent(tmp_path).commands["train"]
    for drill in ("segv@3", "hang-forward@35/1"):
        assert replace(run, drill=drill).intent(tmp_path).commands["train"] == (*usual, "--drill", drill)
    assert replace(run, drill="import-failure").intent(tmp_path).commands["train"] == usual


@pytest.mark.parametrize("drill", ["segv@3", "import-failure"])
def test_every_drill_is_in_the_intent_and_no_part_of_any_identity(run: Run, drill: str, tmp_path: Path) -> None:
    drilled, usual = replace(run, drill=drill).intent(tmp_path), run.intent(tmp_path)
    assert (drilled.drill, usual.drill) == (drill, None)
    for key in ("workload_hash", "environment_hash", "options", "variables"):
        assert getattr(drilled, key) == getattr(usual, key)
    assert replace(run, drill=drill).request == replace(run.request, drill=drill)
    assert replace(run, drill=drill).check_command(Path("m.pt")) == run.check_command(Path("m.pt"))


def test_the_features_are_never_drilled(run: Run, matrix: Matrix, tmp_path: Path) -> None:
    two = replace(run, cell=replace(run.cell, preset=matrix.presets["notes-aggressive"]), drill="segv@3")
    commands = two.intent(tmp_path).commands
    assert list(commands) == ["features", "train"]
    assert "--drill" not in commands["features"]
    assert "--drill" in commands["train"]
