"""Tests with real trainings of every kind by an honest app: their progress accounts for their results."""

from collections.abc import Callable

import pytest

from harness.base.contract import CONTRACT
from harness.evidence.files.run_files import Record
from harness.matrix.cells import Matrix

RunTiny = Callable[..., Record]
LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"strategy": "ddp", "epochs": 1}, id="ranks", marks=LONG),
        pytest.param({"loop": "resident", "epochs": 40, "batch_size": 256}, id="as fast as it gets"),
        *(
            pytest.param({"strategy": strategy}, id=strategy, marks=LONG)
            for strategy in ("fsdp", "averaging", "model-parallel")
        ),
        pytest.param({"strategy": "ddp", "model": ("mlp", "attention-small")}, id="ranks and two models", marks=LONG),
        pytest.param({"chunk_rows": 512, "model": ("mlp", "attention-small")}, id="samples on the disk", marks=LONG),
        pytest.param({"epochs": 1, "batch_size": 100_000}, id="a single step", marks=LONG),
    ],
)
def test_an_honest_training_accounts_for_its_result(changes: dict[str, object], run_tiny: RunTiny) -> None:
    record = run_tiny(**changes)
    assert (record.outcome, record.detail.endswith(", verified")) == ("completed", True), record.detail
    assert (record.intent.contract, record.intent.verified) == (CONTRACT, True)
    assert record.result is not None
    assert (record.result.contract, record.result.nonce) == (CONTRACT, record.intent.nonce)


@LONG
def test_features_of_a_process_of_their_own_are_accounted_for(run_tiny: RunTiny, small_matrix: Matrix) -> None:
    record = run_tiny(preset=small_matrix.presets["two-phases"])
    assert (record.outcome, record.diagnosis) == ("completed", None), record.detail
