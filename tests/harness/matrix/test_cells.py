import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.matrix.cells import Exclusion, Matrix, Preset
from harness.matrix.stacks import Stack

REASON = "a reason long enough"


def stack(rocm: str = "6.3", torch: str = "2.9.1") -> Stack:
    return Stack(name=f"rocm{rocm}-torch{torch}", accelerator="rocm", rocm=rocm, torch=torch)


PRESET = Preset(name="no-sdma", description="d", variables={"HSA_ENABLE_SDMA": "0"})


@pytest.mark.parametrize(
    ("keys", "matches"),
    [
        ({"preset": "no-sdma"}, True),
        ({"preset": "plain"}, False),
        ({"torch": ">=2.9"}, True),
        ({"torch": "<2.9"}, False),
        ({"rocm": "==6.3"}, True),
        ({"rocm": ">6.2.4", "torch": "<2.10"}, True),
        ({"rocm": ">6.2.4", "preset": "plain"}, False),
        ({"accelerator": "cpu"}, False),
        ({"stack": "rocm6.3-torch2.9.1", "preset": "no-sdma"}, True),
    ],
)
def test_an_exclusion_needs_every_key_it_gives(keys: dict[str, str], matches: bool) -> None:
    assert Exclusion.model_validate({**keys, "reason": REASON}).matches(stack(), PRESET) is matches


def test_a_version_range_does_not_match_where_there_is_no_version() -> None:
    cpu = Stack(name="cpu", accelerator="cpu", torch="2.13.0")
    assert not Exclusion(rocm="<9", reason=REASON).matches(cpu, PRESET)


def test_cells_of_a_selection_are_its_product_in_file_order(matrix: Matrix) -> None:
    chosen = matrix.selections["default"]
    ids = [f"{s}-{p}" for s in chosen.stacks for p in chosen.presets]
    assert [cell.id for cell in matrix.select("default")] == ids


def test_all_is_every_cell(matrix: Matrix) -> None:
    assert [cell.id for cell in matrix.select("all")] == list(matrix.cells)
    assert len(matrix.cells) == len(matrix.stacks) * len(matrix.presets)


def test_a_preset_with_sections_is_two_processes() -> None:
    preset = Preset(description="d", variables={"A": "1", "B": "1"}, features={"B": "2"}, train={"C": "3"})
    assert preset.phases == ("features", "train")
    assert preset.variables_of("features") == {"A": "1", "B": "2"}
    assert preset.variables_of("train") == {"A": "1", "B": "1", "C": "3"}
    assert PRESET.phases == ("train",)


@given(st.permutations(["cpu", "rocm6.2-torch2.5.1", "host"]))
def test_the_id_of_a_cell_does_not_depend_on_the_order_of_the_file(order: list[str]) -> None:
    contents = {
        "cpu": {"accelerator": "cpu", "torch": "2.13.0", "name": "cpu"},
        "rocm6.2-torch2.5.1": {"accelerator": "rocm", "rocm": "6.2", "torch": "2.5.1", "name": "rocm6.2-torch2.5.1"},
        "host": {"accelerator": "any", "name": "host"},
    }
    values = {
        "schema": 2,
        "stacks": {name: contents[name] for name in order},
        "presets": {"plain": {"description": "d", "name": "plain"}},
        "workloads": {},
        "selections": {},
    }
    assert set(Matrix.model_validate(values).cells) == {f"{name}-plain" for name in contents}
