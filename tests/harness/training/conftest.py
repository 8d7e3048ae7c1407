"""Fixtures of a training, on a CPU or on hosts of the test's own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.bench.plan import plain_cpu_cell
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import Result
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.training.attempt import TrainingJob
from harness.training.options import own_workload
from harness.training.state import new_state, open_state_file
from tests.harness.pretending import RecordingDisplay
from tests.harness.training.scripted_attempts import MakeTraining, Probes, ScriptedAttemptsBench, TrainingUnderTest


@pytest.fixture(autouse=True)
def probed_again(monkeypatch: pytest.MonkeyPatch) -> Probes:
    """Return the GPUs of each new probe of unhealthy GPUs; the probes change nothing."""
    probes: Probes = []
    monkeypatch.setattr("harness.campaign.gpus.unhealthy.recheck", lambda run, *_: probes.append(run.gpus))
    return probes


@pytest.fixture
def make_training(tmp_path: Path, matrix: Matrix, result_values: dict[str, Any]) -> Iterator[MakeTraining]:
    def make(host: HostFacts, cell: str = "cpu-plain", **options: Any) -> TrainingUnderTest:
        results = Results(tmp_path / "results")
        gpus = tuple(gpu.index for gpu in host.gpus)
        bench = ScriptedAttemptsBench(results, ProcessExecutor(), host, gpus)
        bench.made, bench.result = [], Result.model_validate(result_values)
        output = tmp_path / "TRAINING"
        job = TrainingJob(matrix.cells[cell], plain_cpu_cell(matrix), own_workload(options), output, "bars")
        with open_state_file(results, host, output, "bars") as file:
            return TrainingUnderTest(bench, job, file, RecordingDisplay(), new_state("key", cell, None))

    yield make
    shutil.rmtree(tmp_path)


@pytest.fixture
def training(make_training: MakeTraining, host: HostFacts) -> TrainingUnderTest:
    """Return a training on a CPU."""
    return make_training(host)
