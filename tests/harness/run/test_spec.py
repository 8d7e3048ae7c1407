"""An injected fault is in the command and the intent, and in nothing that evidence is told apart by."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.environments.environment import Environment
from harness.evidence.app_files import InputFile
from harness.evidence.run_files import Intent
from harness.evidence.run_folder import RunFolder
from harness.matrix.cells import Matrix, SyntheticData, Workload
from harness.run.spec import Run, resolve_run


@pytest.fixture
def run(matrix: Matrix, make_intent: Callable[..., Intent]) -> Run:
    workload = Workload(description="d", synthetic=SyntheticData(sessions=30), epochs=1, time_limit=60)
    data = InputFile(path="/data.csv", sha256="0" * 64)
    environment = Environment(Path("/none/python"), {}, {}, "cpu")
    return Run("r1", matrix.cells["cpu-plain"], workload, data, environment, make_intent().host)


def test_the_app_is_told_of_a_fault_that_it_injects_and_of_no_other(run: Run, tmp_path: Path) -> None:
    usual = resolve_run(run, RunFolder(tmp_path)).intent.commands["train"]
    for fault in ("segv@3", "hang-forward@35/1"):
        assert resolve_run(replace(run, injected_fault=fault), RunFolder(tmp_path)).intent.commands["train"] == (
            *usual,
            "--inject-fault",
            fault,
        )
    assert (
        resolve_run(replace(run, injected_fault="import-failure"), RunFolder(tmp_path)).intent.commands["train"]
        == usual
    )


@pytest.mark.parametrize("fault", ["segv@3", "import-failure"])
def test_every_fault_is_in_the_intent_and_no_part_of_any_identity(run: Run, fault: str, tmp_path: Path) -> None:
    one, other = (resolve_run(each, RunFolder(tmp_path)) for each in (replace(run, injected_fault=fault), run))
    injected, usual = one.intent, other.intent
    assert (injected.injected_fault, usual.injected_fault) == (fault, None)
    for key in ("workload_hash", "environment_hash", "options", "variables"):
        assert getattr(injected, key) == getattr(usual, key)
    assert one.request == replace(other.request, injected_fault=fault)
    assert (one.app, one.reference) == (other.app, other.reference)


def test_the_features_are_never_injected(run: Run, matrix: Matrix, tmp_path: Path) -> None:
    two = replace(run, cell=replace(run.cell, preset=matrix.presets["notes-aggressive"]), injected_fault="segv@3")
    commands = resolve_run(two, RunFolder(tmp_path)).intent.commands
    assert list(commands) == ["features", "train"]
    assert "--inject-fault" not in commands["features"]
    assert "--inject-fault" in commands["train"]
