"""Renders the Dockerfile of a cell. Pure, except that it reads the template once."""

import re
from functools import cache
from typing import TYPE_CHECKING

from harness.base.paths import IMAGES
from harness.matrix.cells import Cell, Preset
from harness.matrix.stacks import Stack

if TYPE_CHECKING:
    from jinja2 import Template

# The cell's part of the Dockerfile begins with this; everything before belongs to the stack.
CELL = "# Cell "
NO_PRESET = Preset(name="none", description="none")


@cache
def _template() -> "Template":
    # Import here, because it takes a tenth of a second and most commands render nothing.
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    environment.filters |= {"quoted": quoted, "one_line": lambda text: " ".join(text.split())}
    return environment.from_string((IMAGES / "Dockerfile.j2").read_text(encoding="utf-8"))


def quoted(value: str) -> str:
    """Return a value quoted for ENV in a Dockerfile, so that nothing in it is expanded."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def render(cell: Cell, base: str | None = None, layers: int = 1) -> str:
    """Return the Dockerfile of a cell, whose first stage is its stack with `layers` layers of torch and ROCm.

    Variables of one phase only are not in it, because they are set when that phase is run.
    """
    return _template().render(
        cell=cell,
        stack=cell.stack,
        base=base or cell.stack.base,
        layers=layers,
        variables=sorted(cell.preset.variables.items()),
    )


def stack_part(stack: Stack, base: str, layers: int = 1) -> str:
    """Return the part that makes the image of the stack; torch's wheels tell the number of `layers`."""
    return render(Cell(stack, NO_PRESET), base, layers).partition(CELL)[0]


def cell_part(cell: Cell) -> str:
    """Return the part that makes the image of the cell from that of its stack."""
    _, mark, text = render(cell).partition(CELL)
    return mark + text
