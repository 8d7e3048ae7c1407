"""Prints the answer of a results folder: the sentence, the grid, what failed, and the next command."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.evidence.verdicts.words import TIERS_IN_WORDS
from harness.screen.colours import TIER_COLOURS
from harness.screen.fitted import print_folded

if TYPE_CHECKING:
    from harness.campaign.answered import Command
    from harness.report.model import Answer, AnswerGrid, AnswerPlace

GAP = 2


def print_answer(console: Console, answer: "Answer") -> None:
    """Print the answer with the report's words. The lines of commands are not wrapped, so that they can be copied."""
    narrow = console.is_terminal
    console.print(escape(answer.sentence), soft_wrap=not narrow)
    for grid in answer.grids:
        console.print()
        console.print(escape(f"{grid.title}: runs that passed of those that count"), soft_wrap=not narrow)
        for table in _tables(grid, console.width):
            console.print(table)
    if answer.grids:
        console.print()
        console.print(TIERS_IN_WORDS, soft_wrap=not narrow, style="dim")
    for line in answer.failures:
        console.print(escape(f"- {line}"), soft_wrap=not narrow)
    print_next(console, answer.next)
    if answer.train_now:
        print_next(console, answer.train_now, "Or train now")


def print_next(console: Console, following: "Command", title: str = "Next") -> None:
    """Print the command to type next, and what it does."""
    console.print(escape(f"{title}: {following.command}"), soft_wrap=True)
    print_folded(console, f"  It {following.why}.")


def _tables(grid: "AnswerGrid", width: int) -> Iterator[Table]:
    """Yield the grid as tables no wider than `width`, each with some of the stacks: no name is cut or wrapped."""
    width -= max(map(len, grid.presets), default=0)
    row = len(grid.stacks)
    columns = [(stack, grid.places[number::row]) for number, stack in enumerate(grid.stacks)]
    for part in _parts(columns, width):
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        table.add_column("preset", no_wrap=True)
        for stack, _ in part:
            table.add_column(stack, no_wrap=True)
        for number, preset in enumerate(grid.presets):
            table.add_row(preset, *(_coloured(places[number]) for _, places in part))
        yield table


def _parts(
    columns: "Sequence[tuple[str, Sequence[AnswerPlace]]]", width: int
) -> "Iterator[list[tuple[str, Sequence[AnswerPlace]]]]":
    part: list[tuple[str, Sequence[AnswerPlace]]] = []
    left = width
    for stack, places in columns:
        needed = GAP + max([len(stack), *(len(_said(place)) for place in places)])
        if part and needed > left:
            yield part
            part, left = [], width
        part.append((stack, places))
        left -= needed
    if part:
        yield part


def _coloured(place: "AnswerPlace") -> str:
    return f"[{TIER_COLOURS[place.tier]}]{escape(_said(place))}[/]"


def _said(place: "AnswerPlace") -> str:
    return f"{place.text} ({place.work})" if place.work else place.text
