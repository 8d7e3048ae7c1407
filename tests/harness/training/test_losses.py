import json
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.files.app_files import EpochLosses, Result
from harness.evidence.files.run_folder import RunFolder
from harness.training.losses import losses_in_words
from tests.harness.evidence.outcome.judged import evidence_of

EPOCHS = tuple(EpochLosses(epoch=number, train=0.69, validation=0.7 + number / 100) for number in (1, 2, 3))


@pytest.fixture
def result(result_values: dict[str, Any]) -> Result:
    about = {"epochs_done": 3, "epochs_requested": 40, "epoch_losses": EPOCHS, "kept_epoch": 1, "stopped_early": True}
    return Result.model_validate(result_values).model_copy(update=about)


@pytest.mark.parametrize(
    ("constant", "told"),
    [
        (0.6931, "; always answering the training samples' rate has 0.6931: WORSE: do not use this model"),
        (
            0.72,
            "; always answering the training samples' rate has 0.7200: lower, which alone is no evidence of skill",
        ),
        ("\x1b[31m", ""),
        (float("nan"), ""),
    ],
)
def test_the_kept_epoch_is_reported_beside_a_constant_answer(
    result: Result, tmp_path: Path, constant: object, told: str
) -> None:
    metadata = json.dumps({"metrics": {"constant_rate_loss": constant}})
    (tmp_path / "bars_metadata.json").write_text(metadata, encoding="utf-8")
    early = "epoch 1 of 3 is kept (stopped early, of 40: later ones were no better)"
    assert losses_in_words(result, RunFolder(tmp_path), tmp_path, "bars") == (
        f"mlp: {early}: validation loss 0.7100{told}",
    )


def test_what_stopped_early_and_is_resumed_at_its_end_says_what_goes_on(result: Result, tmp_path: Path) -> None:
    goes_on = "; resumed at that end, it goes on only with a larger --patience, or with 0"
    for resumed_at, told in (((), ""), ((8,), ""), ((8, 12), goes_on)):
        resumed = result.model_copy(update={"steps_done": 12, "resumed_at": resumed_at})
        (said,) = losses_in_words(resumed, RunFolder(tmp_path), tmp_path, "bars")
        assert f"(stopped early, of 40: later ones were no better{told})" in said


def test_metadata_that_cannot_be_read_leave_the_loss(result: Result, tmp_path: Path) -> None:
    all_of_it = result.model_copy(update={"stopped_early": False, "kept_epoch": None, "epochs_requested": 3})
    assert losses_in_words(all_of_it, RunFolder(tmp_path), tmp_path, "bars") == (
        "mlp: 3 epochs: validation loss 0.7300",
    )


def test_a_constant_answer_is_what_this_host_computed_whatever_the_app_says(
    result_values: dict[str, Any], result: Result, tmp_path: Path
) -> None:
    (tmp_path / "bars_metadata.json").write_text('{"metrics": {"constant_rate_loss": 0.72}}', encoding="utf-8")
    (tmp_path / "kept").mkdir()
    found = evidence_of(result_values).verification
    assert found
    content = found.model_copy(update={"constant_rate_loss": 0.6931}).model_dump_json(by_alias=True)
    (tmp_path / RunFolder.KEPT_VERIFICATION).write_text(content, encoding="utf-8")
    (said,) = losses_in_words(result, RunFolder(tmp_path), tmp_path, "bars")
    assert said.endswith("has 0.6931: WORSE: do not use this model")
