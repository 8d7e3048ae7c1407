"""Prints tables that fit a terminal: names stay whole, less important columns are left out, and a note says which."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from textwrap import fill

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

GAP = 2
TAB = 8
# Narrowest width to which a column of text is folded, in characters.
NARROWEST_TEXT = 24

wide_option = click.option("--wide", is_flag=True, help="Print every column, however wide the terminal is.")


def print_table(
    console: Console, table: Table, leave_out: Sequence[str], text: str | None, *, wide: bool = False
) -> None:
    """Print a table whose cells are plain strings, or `Text` where they have a colour.

    On a terminal, empty columns are dropped, and then as many of `leave_out` as do not fit, in that order. `text` names
    the only column that may be folded at words; no column is cut. If the columns that stay do not fit, the first of
    them have a line of their own above the others. If piped or `wide`, every column is printed.
    """
    all_of_it = wide or not console.is_terminal
    columns = {str(column.header): _cells(column) for column in table.columns}
    if not all_of_it and table.row_count:
        columns = {name: cells for name, cells in columns.items() if any(line for cell in cells[1:] for line in cell)}
    widths = {header: max(line.cell_len for cell in cells for line in cell) for header, cells in columns.items()}
    above, beside, room = list[str](), set(columns), console.width
    if not all_of_it:
        above, beside = _that_fit({**widths, **_narrowest(widths, text)}, leave_out, room)
        room -= GAP if above else 0
        if text in beside and (over := _total(beside, widths) - room) > 0:
            widths[text] = max(widths[text] - over, _narrowest(widths, text)[text])
            columns[text] = [_folded(console, cell, widths[text]) for cell in columns[text]]
    shown = [header for header in columns if header in beside]
    cells_of_rows = zip(*(columns[header] for header in shown), strict=True)
    rows = [list(_lines(cells, [widths[header] for header in shown])) for cells in cells_of_rows]
    if above:
        firsts = (
            _lines(cells, [max(line.cell_len for line in cell) for cell in cells])
            for cells in zip(*(columns[header] for header in above), strict=True)
        )
        rows = [[*first, *(Text(" " * GAP) + line for line in row)] for first, row in zip(firsts, rows, strict=True)]
    console.print(Text("\n").join(line for row in rows for line in row), soft_wrap=True)
    if dropped := [header for header in columns if header not in beside and header not in above]:
        console.print(f"(not shown: {', '.join(dropped)}; --wide shows all)", markup=False, style="dim")


def print_folded(
    console: Console, line: str | Text, indentation: int | None = None, command: str | None = None
) -> None:
    """Print a line.

    On a terminal it is folded at words, and continued with its own indentation or `indentation` columns.

    Styled parts have to be at the beginning of the line. A line that begins with the word `command` is not folded,
    because the user copies the command that follows.
    """
    text = Text(line) if isinstance(line, str) else line
    is_command = command is not None and text.plain.lstrip().startswith(command)
    if console.is_terminal and text.cell_len > console.width and not is_command:
        own = len(text.plain) - len(text.plain.lstrip())
        indent = " " * (own if indentation is None else indentation)
        text = Text(folded(text.plain, console.width, indent), spans=text.spans)
    console.print(text, soft_wrap=True, highlight=False)


def folded(text: str, width: int, indent: str = "") -> str:
    """Return a text folded at words. Names, paths and commands in backquotes stay whole, so that they can be copied."""
    whole = re.sub("`[^`]*`", lambda found: found[0].replace(" ", "\0"), text)
    lines = fill(whole, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return lines.replace("\0", " ")


def as_question(console: Console, text: str) -> str:
    """Return a question as it is asked: on a terminal folded at words, with room for the choice of answers."""
    return folded(text, console.width - len(" [y/N]: ")) if console.is_terminal else text


def print_sentences(console: Console, lines: Iterable[str]) -> None:
    """Print lines; on a terminal they are folded at words."""
    for line in lines:
        print_folded(console, line)


def _that_fit(widths: Mapping[str, int], leave_out: Sequence[str], room: int) -> tuple[list[str], set[str]]:
    """Return the columns that need a line of their own above the others, and those that fit beside each other."""
    above, beside, below = list[str](), set(widths).difference(leave_out), room
    while len(beside) > 1 and _total(beside, widths) > below:
        above.append(next(header for header in widths if header in beside))
        beside.discard(above[-1])
        below = room - GAP
    for header in reversed(leave_out):
        more = {header, *beside} & widths.keys()
        if _total(more, widths) <= below:
            beside = more
    return above, beside


def _cells(column: Column) -> list[list[Text]]:
    """Return the lines of each cell of a column, the heading first."""
    cells = [Text(str(column.header), "bold")]
    cells += [cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells]
    for cell in cells:
        cell.expand_tabs(TAB)
    return [list(cell.split()) for cell in cells]


def _folded(console: Console, cell: Iterable[Text], width: int) -> list[Text]:
    return [part for line in cell for part in line.wrap(console, width, overflow="fold")]


def _lines(row: Sequence[Sequence[Text]], widths: Sequence[int]) -> Iterable[Text]:
    """Yield the lines of a row; there are as many as its tallest cell has."""
    for parts in zip_longest(*row, fillvalue=Text()):
        line = Text()
        for part, width in zip(parts, widths, strict=True):
            line.append_text(part).append(" " * (width - part.cell_len + GAP))
        # Strip trailing blanks, which a single long cell in a column would add to all other lines.
        line.rstrip()
        yield line


def _narrowest(widths: Mapping[str, int], text: str | None) -> dict[str, int]:
    """Return the narrowest width of the column that may be folded, by its name; empty if there is none."""
    return {text: min(widths[text], NARROWEST_TEXT)} if text is not None and text in widths else {}


def _total(headers: Iterable[str], widths: Mapping[str, int]) -> int:
    taken = [widths[header] + GAP for header in headers]
    return max(0, sum(taken) - GAP)
