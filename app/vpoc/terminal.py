"""Progress bars for a person who watches; none when stderr is not a terminal."""

import sys
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
