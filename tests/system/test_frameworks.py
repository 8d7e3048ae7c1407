"""Tests of a real training by another framework than torch."""

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.environment import Environment, ensure_environment
from harness.environments.executors.process import ProcessExecutor
from harness.environments.verifier import Verifier
from harness.evidence.files.app_files import InputFile
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.load import load_matrix
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from tests.system.conftest import TINY


@pytest.mark.long
def test_what_jax_trained_is_verified_by_torch(
    environment: Environment, data: InputFile, host: HostFacts, results: Results
) -> None:
    cell = load_matrix(CHECKOUT / "matrix.yaml").cells["cpu-jax0.10.0-plain"]
    own = ensure_environment(cell.stack)
    made = Run("by-jax", cell, TINY, data, own, host, verifier=Verifier(environment))
    record = run_cell(made, results, ProcessExecutor())
    assert (record.outcome, record.diagnosis) == ("completed", None), record.detail
    assert record.detail.endswith(", verified")
    assert record.result is not None
    assert record.result.jax_version == "0.10.0"
