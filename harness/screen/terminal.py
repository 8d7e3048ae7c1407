"""The only way to the terminal: no text that is printed moves the cursor or sets a colour; only rich does."""

from collections.abc import Iterable

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from harness.base.text import printable


class SafeConsole(Console):
    """A console on which text is only text. Control codes of rich itself, such as a spinner's, are none."""

    def turn_plain(self) -> None:
        """Print from now on as into a file: its terminal is gone."""
        self.is_interactive, self._color_system = False, None

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to print."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text as it is, but for characters that cannot be printed; with `err` to standard error."""
    click.echo(printable(str(text)), err=err, nl=nl)
