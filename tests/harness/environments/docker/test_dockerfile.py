import subprocess
from pathlib import Path

import pytest

from harness.base.paths import CHECKOUT
from harness.environments.docker.dockerfile import cell_part, quoted, render, stack_part
from harness.matrix.cells import Matrix


def test_every_cell_has_a_dockerfile_of_its_own(matrix: Matrix) -> None:
    cells = [cell for cell in matrix.cells.values() if cell.excluded is None and cell.stack.accelerator != "any"]
    assert len({render(cell) for cell in cells}) == len(cells)


def test_what_a_cell_adds_to_its_stack_is_variables_and_labels_only(matrix: Matrix) -> None:
    texts = [render(matrix.cells[f"cpu-{preset}"]) for preset in ("plain", "no-sdma", "notes-dockerfile")]
    stages = [text.split("FROM ${STACK} AS cell")[1] for text in texts]
    # Everything before the last stage is the same, so the cells share its layers.
    assert len({text.split("# Cell")[0] for text in texts}) == 1
    for stage in stages:
        assert {line.split(" ")[0] for line in stage.splitlines() if line} <= {"ENV"}


def test_the_two_parts_make_the_whole(matrix: Matrix) -> None:
    cell = matrix.cells["rocm6.3-torch2.9.1-no-sdma"]
    assert stack_part(cell.stack, cell.stack.base) + cell_part(cell) == render(cell)
    assert "FROM another/base@sha256:1 AS runtime" in stack_part(cell.stack, "another/base@sha256:1")


def test_no_dockerfile_is_written_for_one_distribution(matrix: Matrix) -> None:
    template = (CHECKOUT / "images" / "Dockerfile.j2").read_text(encoding="utf-8")
    assert "{% if" not in template
    cells = [matrix.cells[f"{stack}-plain"] for stack in ("cpu", "cpu-debian13-torch2.6.0")]
    # They only differ in whether torch comes with the base, because then the environment sees the base's packages.
    bookworm, trixie = (render(cell, "base").splitlines() for cell in cells)
    different = [a for a, b in zip(bookworm, trixie, strict=True) if a != b]
    assert [line.strip().split(" ")[0] for line in different] == ["#", "python3", "python3", "#"]


def test_every_dockerfile_passes_hadolint(matrix: Matrix) -> None:
    stacks = [name for name, stack in matrix.stacks.items() if stack.torch]
    for name in (*(f"{stack}-plain" for stack in stacks), "rocm6.3-torch2.9.1-notes-dockerfile"):
        command = [".venv/bin/hadolint", "--no-color", "-"]
        run = subprocess.run(command, input=render(matrix.cells[name]), capture_output=True, text=True, check=False)
        assert (run.returncode, run.stdout) == (0, ""), name


def test_the_values_are_the_presets(matrix: Matrix) -> None:
    text = render(matrix.cells["rocm6.3-torch2.9.1-notes-stable"])
    assert 'ENV PYTORCH_HIP_ALLOC_CONF="max_split_size_mb:512"' in text
    assert "VPOC_DEVICE=cuda" in text
    assert "VPOC_DEVICE=cpu" in render(matrix.cells["cpu-notes-stable"])


def test_nothing_in_a_value_is_expanded() -> None:
    assert quoted('a "b" $HOME \\ <c>') == r'"a \"b\" \$HOME \\ <c>"'


def test_a_variable_of_one_phase_is_not_baked_in(matrix: Matrix) -> None:
    assert "PYTORCH_NO_HIP_MEMORY_CACHING" not in render(matrix.cells["rocm6.3-torch2.9.1-notes-aggressive"])


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["cpu-plain", "rocm6.2-torch2.5.1-notes-single-gpu"])
def test_the_rendered_text_is_printed_by_the_command(cell: str, matrix: Matrix, tmp_path: Path) -> None:
    run = subprocess.run([".venv/bin/matrix", "render", cell], capture_output=True, text=True, check=True)
    assert run.stdout == render(matrix.cells[cell])


def test_an_image_is_compared_with_the_hip_that_its_rocm_brings(matrix: Matrix) -> None:
    parts = {
        name: stack_part(matrix.stacks[name], "base") for name in ("rocm10.0.0-torch2.13.0", "rocm6.2.4-torch2.7.1")
    }
    assert "others 3.11 2.13.0 7.15\n" in parts["rocm10.0.0-torch2.13.0"]
    assert "others 3.11 2.7.1 6.2.4\n" in parts["rocm6.2.4-torch2.7.1"]


def test_the_python_of_amds_image_is_kept(matrix: Matrix) -> None:
    keeps = "test -x /opt/venv/bin/python || python3 -m venv --without-pip --system-site-packages /opt/venv"
    assert keeps in stack_part(matrix.stacks["rocm7.2.4-torch2.10.0-amd"], "base")
    assert "test -x" not in stack_part(matrix.stacks["cpu-debian13-torch2.6.0"], "base")
