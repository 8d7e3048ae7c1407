"""Shows the steps of a command that takes a while."""

import re
from typing import Self

from rich.console import Console
from rich.markup import escape

_MEGABYTES = re.compile(r": \d+( of \d+)? MB$")


class Steps:
    """A context manager that shows the current step: a spinner on a terminal, otherwise a line for each new step.

    A transfer is one step, however its number of megabytes changes.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._last = ""

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def step(self, text: str) -> None:
        """Show a step that begins, or the same step with new numbers."""
        name = without_megabytes(text)
        self._status.update(escape(text))
        if name != self._last:
            self._last = name
            if not self._console.is_terminal:
                self._console.print(escape(name), soft_wrap=True)


def without_megabytes(step: str) -> str:
    """Return the name of a step: of a transfer, its text without the changing number of megabytes."""
    return _MEGABYTES.sub("", step)
