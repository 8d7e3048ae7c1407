"""Cell -> Dockerfile text. Pure but for reading the template once."""

from functools import cache

from jinja2 import Environment, StrictUndefined, Template

from harness.matrix import Cell
from harness.paths import CHECKOUT


@cache
def _template() -> Template:
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701
    return environment.from_string((CHECKOUT / "images" / "Dockerfile.j2").read_text(encoding="utf-8"))


def render(cell: Cell) -> str:
    """The Dockerfile of a cell. Variables of one phase only are not in it: they are given when that phase is run."""
    return _template().render(
        cell=cell,
        device="cuda" if cell.stack.accelerator == "rocm" else "cpu",
        variables=sorted(cell.preset.variables.items()),
    )
