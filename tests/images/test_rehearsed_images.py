"""Tests of the rehearsal's stand-in ROCm stacks as images: built, pushed, pulled elsewhere and verified."""

from pathlib import Path

import pytest

from benchmarks.rehearsed_images import OTHER, REGISTRY, use_images
from harness.base.paths import CHECKOUT
from harness.environments.docker.verify_image import EQUAL, SAME_CONTENT
from harness.faults.own_engine import OwnEngine
from harness.host.engine import Engine
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.rehearsal.rehearse import one_of_each_source

MATRIX = load_matrix(CHECKOUT / "matrix.yaml")
# All sources but AMD's folders, whose Python no base here has.
STACKS = [stack.name for stack in one_of_each_source(MATRIX, "default") if stack.name in MATRIX.stacks]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", STACKS)
def test_a_stand_in_is_built_pushed_pulled_and_verified(
    name: str, engine: Engine, matrix: Matrix, registry: str, private_engine: OwnEngine, tmp_path: Path
) -> None:
    elsewhere = private_engine.start()
    places = {REGISTRY: registry, OTHER: elsewhere.address}
    stack = next(one for one in one_of_each_source(matrix, "default") if one.name == name)
    used = use_images(matrix, engine, [stack], tmp_path, print, **places)[name]
    assert used["same_layers"]
    assert used["signed_by"] == ["you"]
    assert {check["name"]: check["right"] for check in used["checks"]} == {
        "lock": True,
        "provenance": True,
        "bill of materials": True,
    }, used["checks"]
    assert used["rebuilt"]["result"] in (EQUAL, SAME_CONTENT), used["rebuilt"]
