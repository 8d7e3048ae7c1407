"""Output for a person at a terminal: progress bars, and lines folded at words. Without a terminal nothing is added."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def watched(items: Iterable[_T], label: str, length: int) -> Iterator[_T]:
    """Yield `items`, with a progress bar on stderr when it is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    import click  # noqa: PLC0415 - only where there is a terminal

    with click.progressbar(items, length=length, label=label, file=sys.stderr) as bar:
        yield from bar


def folded(text: str) -> str:
    """Return `text` with its long lines folded at words if stdout is a terminal; lines of tables are not folded."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    fold = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(line if "  " in line else fold(line) for line in text.split("\n"))
