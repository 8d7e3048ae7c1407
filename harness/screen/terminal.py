"""All output to the terminal goes through here: printed text cannot move the cursor or set a colour; only rich can."""

from collections.abc import Iterable

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from harness.base.text import printable


class SafeConsole(Console):
    """A console that makes control codes in printed text harmless.

    Rich's own control codes, as of a spinner, still work.
    """

    def turn_plain(self) -> None:
        """Print as if into a file from now on, because the terminal is gone."""
        self.is_interactive, self._color_system = False, None

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with unprintable characters replaced in their text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text with unprintable characters replaced; with `err` to standard error."""
    click.echo(printable(str(text)), err=err, nl=nl)
