"""Cells that differ from a cell of the matrix only in which variables of its preset are set."""

from collections.abc import Collection
from dataclasses import replace

from harness.matrix.cells import Cell, Matrix, Preset

VARIANT = "~"
"""Stands in the id of a cell that is no cell of the matrix, between what it was made from and what is set."""

# A variable of one phase is named after it: it may have another value in the other.
PHASES = ("features", "train")


def variable_names(preset: Preset) -> tuple[str, ...]:
    """Return what a preset can do without: `NAME`, or `features.NAME` and `train.NAME` for variables of one phase."""
    return (*preset.variables, *(f"{phase}.{name}" for phase in PHASES for name in getattr(preset, phase)))


def variant(cell: Cell, kept: Collection[str]) -> Cell:
    """The cell with only the variables in `kept`; what else its preset says stays.

    Its preset is named after them: `notes-stable~HSA_XNACK+PYTORCH_ROCM_ARCH`. With all of them it is the cell itself.
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
    """The cell of that id, of the matrix or a variant of one; None where the matrix has it no longer."""
    of, _, names = cell_id.partition(VARIANT)
    cell = matrix.cells.get(of)
    if cell is None or not names:
        return cell
    made = variant(cell, names.split("+"))
    return made if made.id == cell_id else None


def control_of(cell: Cell, matrix: Matrix) -> Cell:
    """The cell with none of the variables: the plain one of the matrix where it is that, otherwise a variant."""
    nothing = variant(cell, ())
    plain = matrix.cells.get(f"{cell.stack.name}-plain")
    if plain and not variable_names(plain.preset) and plain.preset.devices == nothing.preset.devices:
        return plain
    return nothing
