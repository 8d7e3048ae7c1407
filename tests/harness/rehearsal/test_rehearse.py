"""A rehearsal with stubs, as processes: the whole way of a stack, what is left, and that it is no evidence."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.paths import CACHE, CHECKOUT, LOCKS, REHEARSAL_VARIABLE
from harness.cli.main import cli
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import count_runs
from harness.host.fingerprint import read_host
from harness.matrix.cells import Matrix
from harness.registry.share.exports import export_records
from harness.rehearsal import rehearse, source_places
from harness.rehearsal.steps import Rehearsal

# The source that differs most from an ordinary index: no hashes, 403, a package that is only source.
STACK = "rocm7.14.0-torch2.12.0"
PROGRAM = str(CHECKOUT / ".venv" / "bin" / "matrix")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rehearse, "FOLDER", tmp_path / "rehearsal")
    return tmp_path / "results"


def run(results: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    options = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(results), "rehearse", "--stub", *words]
    with pytest.raises(SystemExit) as ended:
        cli(args=options, prog_name="matrix", standalone_mode=False)
    return int(str(ended.value.code)), capsys.readouterr().out


@pytest.mark.slow
def test_a_stack_goes_from_lock_to_record_and_is_no_evidence(
    results: Path, tmp_path: Path, matrix: Matrix, capsys: pytest.CaptureFixture[str]
) -> None:
    locks = {file.name for file in LOCKS.iterdir()}
    status, printed = run(results, capsys, "--json", STACK)
    told = Rehearsal.model_validate_json(printed)
    assert (status, told.passed) == (0, True)
    assert (json.loads(printed)["schema"], json.loads(printed)["rehearsal"]) == (2, True)
    (stack,) = told.stacks
    steps = {step.step: step for step in stack.steps}
    assert list(steps) == ["lock", "build", "verify", "run", "record"]
    assert (stack.torch, stack.executor, stack.outcome) == ("stub", "process", "completed")
    assert steps["lock"].refused
    assert "torch 2.12.0+rocm7.14.0" in steps["lock"].did
    # Not where it was taken from here, but where a real host takes it.
    assert stack.url == "https://repo.amd.com/rocm/whl-multi-arch"
    assert "https://repo.amd.com/rocm/whl-multi-arch" in steps["lock"].real
    assert "2.2 GB" in steps["build"].real
    # Nothing is left of it but the record, which is where nothing looks for evidence.
    assert not rehearse.FOLDER.exists()
    assert {file.name for file in LOCKS.iterdir()} == locks
    assert not Results(results).runs.exists()
    made = Results(results / "rehearsal")
    (record,) = made.records()
    assert (record.intent.rehearsal, record.intent.device, record.intent.gpus) == (True, "cpu", ())
    (row,) = Index(made).rows()
    assert not row.can_be_evidence
    assert not row.qualifies_for_promotion
    assert of_results.verdicts_on([row], matrix, count_runs([row])) == []
    with pytest.raises(UserError, match="1 rehearsal: no evidence"):
        export_records(made, tmp_path / "records.tar.gz", read_host(Path("/")))


def test_a_stack_that_takes_no_rocm_wheel_is_refused(results: Path) -> None:
    words = ["--matrix", str(CHECKOUT / "matrix.yaml"), "--results", str(results), "rehearse"]
    for name in ("cpu", "rocm7.2.4-torch2.10.0-amd"):
        with pytest.raises(UserError, match="takes no wheels of torch for ROCm from an index"):
            cli(args=[*words, name], prog_name="matrix", standalone_mode=False)
    with pytest.raises(UserError, match=r"did you mean rocm6\.3"):
        cli(args=[*words, "rocm6.3-torch"], prog_name="matrix", standalone_mode=False)


@pytest.mark.slow
def test_a_step_that_fails_is_said_and_is_status_1(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = source_places.source_place
    # As if the source had another torch than wheels.yaml says.
    monkeypatch.setattr(
        rehearse, "source_place", lambda stack, *more: real(stack.model_copy(update={"torch": "2.11.0"}), *more)
    )
    status, printed = run(results, capsys, STACK)
    assert status == 1
    assert "  stopped: stack rehearsal-" in printed
    assert "; 1 of 1\n" in printed
    assert "0 of 1 stacks rehearsed to the end" in printed
    assert not rehearse.FOLDER.exists()


def test_the_places_of_a_rehearsal_are_its_own(tmp_path: Path) -> None:
    code = "from harness.base import paths; print(paths.LOCKS, paths.WHEELS, paths.ENVIRONMENTS, paths.BUILDS)"
    variables = {**os.environ, REHEARSAL_VARIABLE: str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=True
    )
    assert [Path(place).relative_to(tmp_path).parts[0] for place in run.stdout.split()] == ["locks", *["cache"] * 3]


def test_another_rehearsal_is_waited_for_only_where_there_is_one(results: Path, matrix: Matrix) -> None:
    said: list[str] = []
    assert list(rehearse.Rehearsing(matrix, Results(results), notify=said.append).all([])) == []
    assert said[0] == "making room for a rehearsal"


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_but_records(tmp_path: Path) -> None:
    words = [PROGRAM, "--results", str(tmp_path / "results"), "rehearse", "--stub", "rocm10.0.0-torch2.13.0"]
    process = subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    for line in process.stdout:
        if line.startswith("  lock"):
            break
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Interrupted: nothing but records is left of the rehearsal." in said
    assert "0 of 1 stacks" in out
    assert not (CACHE / "rehearsal" / "rocm10.0.0-torch2.13.0").exists()
