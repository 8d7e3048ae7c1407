"""Cells that differ from a cell of the matrix only in which variables of its preset they set."""

from collections.abc import Collection
from dataclasses import replace

from harness.matrix.cells import Cell, Matrix, Preset

VARIANT = "~"
"""Separates, in the id of such a cell, the cell that it was made from and the variables that it sets."""

# A variable of one phase is named after the phase, because it may have another value in the other phase.
PHASES = ("features", "train")


def variable_names(preset: Preset) -> tuple[str, ...]:
    """Return the names of the variables that a preset sets: `NAME`, or `features.NAME`, `train.NAME` for one phase."""
    return (*preset.variables, *(f"{phase}.{name}" for phase in PHASES for name in getattr(preset, phase)))


def variant(cell: Cell, kept: Collection[str]) -> Cell:
    """Return the cell with only the variables in `kept`; everything else in its preset stays.

    The new preset is named after them: `notes-stable~HSA_XNACK+PYTORCH_ROCM_ARCH`. With all variables, return the cell.
    """
    preset = cell.preset
    names = [name for name in variable_names(preset) if name in kept]
    if len(names) == len(variable_names(preset)):
        return cell
    changes = {
        "name": f"{preset.name}{VARIANT}{'+'.join(names) or 'nothing'}",
        "description": f"{preset.name} with {', '.join(names) or 'nothing'} alone",
        "variables": {name: value for name, value in preset.variables.items() if name in kept},
        **{p: {n: value for n, value in getattr(preset, p).items() if f"{p}.{n}" in kept} for p in PHASES},
    }
    return replace(cell, preset=preset.model_copy(update=changes))


def find_cell(matrix: Matrix, cell_id: str) -> Cell | None:
    """Return the cell with this id, of the matrix or a variant of one; None if the matrix has it no longer."""
    of, _, names = cell_id.partition(VARIANT)
    cell = matrix.cells.get(of)
    if cell is None or not names:
        return cell
    made = variant(cell, names.split("+"))
    return made if made.id == cell_id else None


def control_of(cell: Cell, matrix: Matrix) -> Cell:
    """Return the cell with none of the variables: the matrix's plain cell if it is equal, otherwise a variant."""
    nothing = variant(cell, ())
    plain = matrix.cells.get(f"{cell.stack.name}-plain")
    if plain and not variable_names(plain.preset) and plain.preset.devices == nothing.preset.devices:
        return plain
    return nothing
