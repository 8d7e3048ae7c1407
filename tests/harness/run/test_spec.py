"""An injected fault is in the command and the intent, and in nothing that evidence is told apart by."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.environments.environment import FORMER_OPTIONS, Environment, app_hash, image_environment
from harness.evidence.app_files import InputFile
from harness.evidence.run_files import Intent
from harness.evidence.run_folder import RunFolder
from harness.host.facts import HostFacts
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


def test_an_app_of_another_version_is_given_options_by_the_names_that_every_app_takes(
    run: Run, matrix: Matrix, dual_host: HostFacts, tmp_path: Path
) -> None:
    stack = matrix.cells["rocm6.3-torch2.9.1-plain"].stack
    older, current = (image_environment("sha256:i", {"app": app}, stack) for app in ("0" * 64, app_hash()))
    for environment, present, names in ((older, False, ("--warm-up", "--rung", "--drill")), (current, True, ())):
        asked = replace(run, environment=environment, host=dual_host, gpus=(0,), injected_fault="segv@3")
        spec = resolve_run(asked, RunFolder(tmp_path))
        probe = spec.probe(dual_host.gpus[0], ("--check", "import")).arguments
        words = [*spec.intent.commands["train"], *spec.reference.arguments, *probe]
        assert [name in words for name in FORMER_OPTIONS] == [present] * 3
        assert [name for name in FORMER_OPTIONS.values() if name in words] == list(names)
