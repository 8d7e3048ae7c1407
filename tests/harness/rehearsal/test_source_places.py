"""The packages that stand in for those of each kind of source."""

from pathlib import Path

import pytest

from harness.matrix.cells import Matrix
from harness.rehearsal.rehearse import one_of_each_source
from harness.rehearsal.source_places import open_pins, other_packages, source_place
from harness.rehearsal.stand_in_index import FORBIDDEN, MISSING, SourceContent, project_of

PACKAGES = {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", "rocm-sdk-device-gfx1100"}
AMD = {"torch", "triton", "amd-torch-device-gfx1100", *PACKAGES}


def place(matrix: Matrix, source: str, folder: Path) -> SourceContent:
    stack = next(one for one in one_of_each_source(matrix, "default") if one.source == source)
    return source_place(stack, stack.python, None, folder)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("pytorch", {"torch", "pytorch-triton-rocm"}),
        ("pytorch-packages", {"torch", "triton-rocm", *PACKAGES}),
        ("amd-7", {*AMD, "amd-torch-device-gfx11"}),
        ("amd-10", AMD),
        ("amd-rel", {"torch", "pytorch-triton-rocm"}),
    ],
)
def test_each_has_what_a_real_one_has(matrix: Matrix, tmp_path: Path, source: str, names: set[str]) -> None:
    assert {project_of(file) for file, _ in place(matrix, source, tmp_path).files} == names


def test_each_answers_as_a_real_one_does(matrix: Matrix, tmp_path: Path) -> None:
    places = {name: place(matrix, name, tmp_path) for name in ("pytorch", "pytorch-packages", "amd-7", "amd-rel")}
    assert [one.missing for one in places.values()] == [MISSING, FORBIDDEN, FORBIDDEN, MISSING]
    assert [one.hashed for one in places.values()] == [True, True, False, False]
    assert [one.folder for one in places.values()] == [False, False, False, True]
    # The meta package exists only as source.
    assert [file for file, _ in places["amd-7"].files if project_of(file) == "rocm"] == ["rocm-7.14.0.tar.gz"]


def test_there_is_a_stack_of_every_source(matrix: Matrix) -> None:
    found = {stack.source: stack for stack in one_of_each_source(matrix, "default")}
    assert list(found) == ["pytorch", "pytorch-packages", "amd-7", "amd-10", "amd-rel"]
    assert found["amd-10"].name == matrix.select("default")[0].stack.name
    # The matrix has none of AMD's folders, and no base with the Python of its wheels.
    assert found["amd-rel"].label == "rocm6.4.2.git76481f7c"
    assert [name for name, stack in found.items() if stack.name not in matrix.stacks] == ["amd-rel"]


def test_the_rest_are_the_wheels_at_hand_or_stubs_of_what_the_pins_name(tmp_path: Path) -> None:
    pins = "torch==2.2.2+rocm5.7\nnumpy==1.26.4\npolars\n"
    assert [name for name, _ in other_packages(pins, ()).files] == [
        "numpy-2.0-py3-none-any.whl",
        "polars-2.0-py3-none-any.whl",
    ]
    held = tmp_path / "numpy-2.4.6-py3-none-any.whl"
    wheels = [held, tmp_path / "torch-2.13.0+cpu-py3-none-any.whl"]
    assert other_packages(pins, wheels).files == ((held.name, held),)
    assert open_pins(pins) == "torch==2.2.2+rocm5.7\nnumpy\npolars\n"
