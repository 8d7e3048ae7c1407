"""The cells that set nothing: what a host runs first, and what it falls back to. Pure."""

from harness.base.errors import UserError
from harness.environments.capabilities import Capabilities, why_not
from harness.matrix.cells import Cell, Matrix


def first_plain_cell(matrix: Matrix, able: Capabilities) -> Cell:
    """The plain cell that this host would run first.

    Raises:
        UserError: when none can run here, with the reason of the first.
    """
    cells = [cell for cell in matrix.select("default") if cell.preset.name == "plain"]
    for cell in cells:
        if why_not(cell, able) is None:
            return cell
    raise UserError(f"cell {cells[0].id} cannot run here: {why_not(cells[0], able)}")


def plain_cpu_cell(matrix: Matrix) -> Cell | None:
    """The cell that sets nothing, for a host whose GPUs do not do; None where the matrix has none."""
    cells = (cell for cell in matrix.cells.values() if cell.stack.accelerator == "cpu" and not cell.excluded)
    return next((c for c in cells if not c.preset.variables and c.preset.phases == ("train",)), None)
