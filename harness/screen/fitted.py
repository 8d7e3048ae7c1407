"""Prints tables that fit a terminal: names stay whole, columns that matter less are left out, and that is said."""

from collections.abc import Sequence
from textwrap import fill

import click
from rich.console import Console
from rich.segment import Segments
from rich.table import Column, Table
from rich.text import Text

GAP = 2
# A column of text is folded where the rest leaves it that much.
NARROWEST_TEXT = 24

wide_option = click.option("--wide", is_flag=True, help="Print every column, however wide the terminal is.")


def print_table(
    console: Console, table: Table, leave_out: Sequence[str] = (), text: str | None = None, *, wide: bool = False
) -> None:
    """Print a table. On a terminal columns of `leave_out` are dropped where they do not fit, the first of them first.

    `text` is the column that may be folded at words; no other is cut or folded. Piped or `wide`, all are printed.
    """
    all_of_it = wide or not console.is_terminal
    kept = list(table.columns)
    if not all_of_it:
        wanted = {column.header for column in table.columns}.difference(leave_out)
        for header in reversed(leave_out):
            more = [column for column in table.columns if column.header in (*wanted, header)]
            if _least(more, text) <= console.width:
                wanted.add(header)
        kept = [column for column in table.columns if column.header in wanted]
    dropped = [str(column.header) for column in table.columns if column not in kept]
    width = max(_least(kept, text), min(_natural(kept), console.width))
    # A console would cut at its own width.
    options = console.options.update_width(_natural(kept) if all_of_it else width)
    made = _of(kept, None if all_of_it else text)
    console.print(Segments(console.render(made, options)), soft_wrap=True, end="")
    if dropped:
        console.print(f"(not shown: {', '.join(dropped)}; --wide shows all)", markup=False, style="dim")


def print_folded(console: Console, line: str) -> None:
    """Print a line; on a terminal it is folded at words, and what follows keeps its indentation."""
    indent = " " * (len(line) - len(line.lstrip()))
    width = console.width if console.is_terminal else max(len(line), 1)
    console.print(fill(line, width, subsequent_indent=indent), soft_wrap=True, markup=False, highlight=False)


def _of(columns: Sequence[Column], text: str | None) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        folded = column.header == text
        table.add_column(column.header, no_wrap=not folded, overflow="fold" if folded else "ignore")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table


def _least(columns: Sequence[Column], text: str | None) -> int:
    """Return the width that the columns need, the folded one at its narrowest."""
    of_text = (_width(column) for column in columns if column.header == text)
    return _natural(columns) - sum(max(0, width - NARROWEST_TEXT) for width in of_text)


def _natural(columns: Sequence[Column]) -> int:
    return sum(_width(column) for column in columns) + GAP * max(0, len(columns) - 1)


def _width(column: Column) -> int:
    return max(Text.from_markup(str(cell)).cell_len for cell in (column.header, *column.cells))
