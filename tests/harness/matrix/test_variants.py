"""Tests of cells with only some of a preset's variables."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.environments import environment_hashes
from harness.environments.docker.images import TAG, cell_tag
from harness.environments.environment import environment_hash
from harness.environments.environment_hashes import current_hashes
from harness.matrix.cells import Cell, Matrix
from harness.matrix.load import load_matrix
from harness.matrix.variants import control_of, find_cell, variable_names, variant


@pytest.fixture
def cell(matrix: Matrix) -> Cell:
    """Return a cell with variables for both phases, with variables for one of them, and with a choice of devices."""
    return matrix.cells["cpu-notes-aggressive"]


def test_a_variable_of_one_phase_is_distinguished_from_that_of_the_other(cell: Cell) -> None:
    assert variable_names(cell.preset) == (
        "PYTORCH_HIP_ALLOC_CONF",
        "HSA_XNACK",
        "PYTORCH_ROCM_ARCH",
        "features.PYTORCH_NO_HIP_MEMORY_CACHING",
        "train.PYTORCH_NO_HIP_MEMORY_CACHING",
    )


def test_only_what_is_kept_is_set(cell: Cell) -> None:
    varied = variant(cell, {"HSA_XNACK", "train.PYTORCH_NO_HIP_MEMORY_CACHING"})
    assert varied.id == "cpu-notes-aggressive~HSA_XNACK+train.PYTORCH_NO_HIP_MEMORY_CACHING"
    assert varied.preset.variables == {"HSA_XNACK": "1"}
    assert varied.preset.features == {}
    assert varied.preset.train == {"PYTORCH_NO_HIP_MEMORY_CACHING": "0"}
    assert (varied.stack, varied.preset.devices) == (cell.stack, cell.preset.devices)
    assert environment_hash({}, varied.preset) != environment_hash({}, cell.preset)


def test_with_all_it_is_the_cell_itself(cell: Cell) -> None:
    assert variant(cell, variable_names(cell.preset)) is cell


def test_the_control_is_the_plain_cell_where_that_differs_in_nothing_else(cell: Cell, matrix: Matrix) -> None:
    assert control_of(matrix.cells["cpu-notes-stable"], matrix).id == "cpu-plain"
    control = control_of(cell, matrix)
    assert control.id == "cpu-notes-aggressive~nothing"
    assert control.preset.devices == (0, 1)
    assert variable_names(control.preset) == ()


def test_a_plain_preset_that_sets_something_is_no_control(write_matrix: Callable[[str], Path]) -> None:
    presets = 'presets:\n  plain: {description: d, variables: {A: "1"}}\n  one: {description: d, variables: {B: "1"}}\n'
    matrix = load_matrix(write_matrix(presets))
    assert control_of(matrix.cells["cpu-one"], matrix).id == "cpu-one~nothing"


def test_every_variant_has_a_tag_of_its_own_that_an_engine_takes(cell: Cell) -> None:
    names = variable_names(cell.preset)
    variants = [variant(cell, names[:count]) for count in range(len(names) + 1)]
    tags = [cell_tag(one).removeprefix("vpoc:") for one in variants]
    assert len(set(tags)) == len(tags)
    assert all(re.fullmatch(TAG, tag) for tag in tags)
    assert tags[-1] == cell.id


def test_a_variant_is_found_by_its_id(cell: Cell, matrix: Matrix) -> None:
    names = variable_names(cell.preset)
    for count in range(len(names) + 1):
        varied = variant(cell, names[:count])
        assert find_cell(matrix, varied.id) == varied
    for gone in ("cpu-gone", "cpu-gone~HSA_XNACK", f"{cell.id}~GONE", f"{cell.id}~HSA_XNACK+GONE"):
        assert find_cell(matrix, gone) is None


def test_a_variant_becomes_stale_with_its_stack(matrix: Matrix, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_hashes, "identify", lambda _: {"app": "now"})
    varied = variant(matrix.cells["cpu-notes-stable"], {"GPU_MAX_HW_QUEUES"})
    hashes = current_hashes(
        matrix, {(varied.id, "process"), ("cpu-notes-stable", "process"), ("cpu-gone~A", "process")}
    )
    assert hashes[varied.id, "process"] == environment_hash({"app": "now"}, varied.preset)
    assert len(set(hashes.values())) == len(hashes) == 2
