"""Tests of the next command that `matrix train` names at its end."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.base.paths import CHECKOUT
from harness.cli.shared import Settings
from harness.cli.training_output import cell_to_predict_in, print_following, words_to_predict
from harness.matrix.cells import Cell, Matrix
from harness.training.losses import LOWER, WORSE
from harness.training.options import own_workload
from harness.training.train import TrainingResult

if TYPE_CHECKING:
    from harness.training.prepare import PreparedTraining


@pytest.mark.parametrize(("losses", "does"), [(f"mlp: 0.69: {LOWER}", "predict"), (f"mlp: 0.71: {WORSE}", "evaluate")])
def test_a_model_that_is_worse_than_none_is_not_to_be_applied_next(
    matrix: Matrix, losses: str, does: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(CHECKOUT / "matrix.yaml", tmp_path, None)
    ended = TrainingResult([], tmp_path / "a.pt", losses=(losses,))
    print_following(settings, matrix.cells["cpu-plain"], own_workload({}), ended, Path("a.csv"), Path("out"))
    printed = capsys.readouterr().err
    assert f"exec cpu-plain vpoc {does} " in printed.splitlines()[0]
    # A lower loss is no evidence of skill, so `vpoc evaluate`, which tests for skill, is always named, but only once.
    assert printed.count("vpoc evaluate") == 1


def test_a_model_is_applied_in_the_cell_of_a_cpu_that_it_was_trained_in(matrix: Matrix) -> None:
    def cell_of(trained_in: str) -> Cell | None:
        job = SimpleNamespace(cell=matrix.cells[trained_in], cpu_cell=matrix.cells["cpu-plain"])
        return cell_to_predict_in(cast("PreparedTraining", SimpleNamespace(job=job)))

    assert cell_of("cpu-no-sdma") == matrix.cells["cpu-no-sdma"]
    assert cell_of("rocm6.3-torch2.9.1-plain") == matrix.cells["cpu-plain"]


@pytest.mark.parametrize("accepted", [(), ("volume-scale", "price-grid")])
def test_data_that_were_accepted_are_accepted_where_the_model_is_applied(accepted: tuple[str, ...]) -> None:
    workload = own_workload({"accepted": accepted})
    words = words_to_predict(workload, Path("out/a.pt"), Path("a.csv"), Path("out"))
    # Trainings on several files of bars may share a folder, so the predictions have the name of the model.
    assert words[:8:7] == ("vpoc", "out/a_predictions.csv")
    assert words[1:4] == ("predict", "--model", "out/a.pt")
    taken = [words[i + 1].replace("_", "-") for i, word in enumerate(words) if word == "--accept"]
    assert taken == list(accepted)
