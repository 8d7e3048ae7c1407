import subprocess
from pathlib import Path

import pytest

from harness.matrix import Matrix
from harness.render import render


def test_every_cell_has_a_dockerfile_of_its_own(matrix: Matrix) -> None:
    cells = [cell for cell in matrix.cells.values() if cell.excluded is None and cell.stack.accelerator != "any"]
    assert len({render(cell) for cell in cells}) == len(cells)


def test_what_a_cell_adds_to_its_stack_is_variables_and_labels_only(matrix: Matrix) -> None:
    texts = [render(matrix.cells[f"cpu-{preset}"]) for preset in ("plain", "no-sdma", "notes-dockerfile")]
    stages = [text.split("FROM stack AS cell")[1] for text in texts]
    # Everything before the last stage is the same but for the comment, so its layers are shared.
    assert len({text.split("\n", 1)[1].split("FROM stack AS cell")[0] for text in texts}) == 1
    for stage in stages:
        assert {line.split(" ")[0] for line in stage.splitlines() if line} <= {"ENV", "LABEL"}


def test_the_values_are_the_presets(matrix: Matrix) -> None:
    text = render(matrix.cells["rocm6.3-torch2.9.1-notes-stable"])
    assert 'ENV PYTORCH_HIP_ALLOC_CONF="max_split_size_mb:512"' in text
    assert "VPOC_DEVICE=cuda" in text
    assert "VPOC_DEVICE=cpu" in render(matrix.cells["cpu-notes-stable"])


def test_a_variable_of_one_phase_is_not_baked_in(matrix: Matrix) -> None:
    assert "PYTORCH_NO_HIP_MEMORY_CACHING" not in render(matrix.cells["rocm6.3-torch2.9.1-notes-aggressive"])


@pytest.mark.parametrize("cell", ["cpu-plain", "rocm6.2-torch2.5.1-notes-single-gpu"])
def test_the_rendered_text_is_printed_by_the_command(cell: str, matrix: Matrix, tmp_path: Path) -> None:
    run = subprocess.run([".venv/bin/matrix", "render", cell], capture_output=True, text=True, check=True)
    assert run.stdout == render(matrix.cells[cell])
