"""The cell that faults are injected into."""

from types import SimpleNamespace
from typing import Any

from harness.faults.target import _cell
from harness.matrix.cells import Matrix


def test_faults_are_never_injected_where_jax_makes_the_steps(matrix: Matrix) -> None:
    jax_first: Any = SimpleNamespace(cells=dict(reversed(matrix.cells.items())))
    assert any(cell.stack.jax for cell in jax_first.cells.values())
    for cells in (matrix, jax_first):
        assert _cell(cells).stack.framework == "torch"
