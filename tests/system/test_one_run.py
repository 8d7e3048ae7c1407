"""Tests of a real run of a cell, and of the files it leaves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from harness.cli.schemas import SCHEMAS
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.records import Results
from harness.matrix.cells import Matrix


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")))


def test_a_run_completes_and_every_file_follows_its_schema(completed: Record, results: Results) -> None:
    record = completed
    folder = results.run_folder(record.intent.run_id)
    for name in ("intent", "record", "kept/result", "kept/verification"):
        schema(Path(name).name).validate(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
    lines = [json.loads(line) for line in (folder / "work/progress-0.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        schema("progress").validate(line)
    phases = list(dict.fromkeys(line["phase"] for line in lines))
    expected = ["import", "init", "data", "features", "first-step", "step", "validate", "checkpoint", "teardown"]
    assert [phase for phase in expected if phase in phases] == phases or set(phases) <= set(expected)
    assert phases[0] == "import"
    assert phases[-1] == "teardown"
    assert {"features", "first-step", "step", "validate", "checkpoint"} <= set(phases)
    assert len({line["pid"] for line in lines}) == 1
    assert results.record(record.intent.run_id) == record
    assert record.ran_on.startswith("cpu (")


def test_the_run_leaves_model_and_log_and_nothing_temporary(completed: Record, results: Results) -> None:
    folder = results.run_folder(completed.intent.run_id)
    # The checkpoints are removed: they are at least three times as large as the model, and a completed run is never
    # resumed. Of the model, the verified copy is kept.
    left = ["model_curves.csv", "model_curves.png", "model_metadata.json"]
    assert {file.name for file in (folder / "kept").glob("*.pt")} == {"model-1.pt", "state-1.pt"}
    assert sorted(f.name for f in (folder / "work/output").iterdir()) == left
    assert (folder / "log.txt").stat().st_size > 0
    assert not Path(RunFolder(folder).work.scratch).exists()
    assert not RunFolder(folder).temporary.exists()


@pytest.mark.slow
def test_a_preset_of_two_phases_is_two_processes(
    completed: Record, run_tiny: Callable[..., Record], small_matrix: Matrix
) -> None:
    record = run_tiny(preset=small_matrix.presets["two-phases"])
    assert record.outcome == "completed", record.detail
    assert list(record.exit) == ["features", "train"]
    caching = {phase: v["PYTORCH_NO_HIP_MEMORY_CACHING"] for phase, v in record.intent.variables.items()}
    assert caching == {"features": "1", "train": "0"}
    assert record.result is not None
    assert completed.result is not None
    assert record.result.first_steps == completed.result.first_steps
    assert record.intent.environment_hash != completed.intent.environment_hash
    assert record.intent.workload_hash == completed.intent.workload_hash


@pytest.mark.slow
def test_the_deep_folder_of_a_run_does_not_keep_loader_workers_waiting(
    run_tiny: Callable[..., Record], results: Results
) -> None:
    """The path of a socket has at most 107 characters, and loader workers create their sockets under TMPDIR."""
    record = run_tiny(loader_workers=2, epochs=1)
    assert record.outcome == "completed", record.detail
    assert len(record.intent.variables["train"]["TMPDIR"]) < 64
    assert Path(record.intent.variables["train"]["HOME"]).is_relative_to(results.folder)
