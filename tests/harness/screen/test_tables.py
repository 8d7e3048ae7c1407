import pytest

from harness.screen import tables


def test_a_row_has_a_cell_for_every_column() -> None:
    """A column that is added to the head alone, or to the rows alone, would shift what stands below it."""
    made = tables._table("cell", "verdict")
    made.add_row("cpu-plain", "good")
    for cells in (("cpu-plain",), ("cpu-plain", "good", "new")):
        with pytest.raises(ValueError, match="for the columns cell, verdict"):
            made.add_row(*cells)
