"""How drills are shown to a person."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from harness.faults.judge import Drilled
from harness.faults.kinds import Drill


def kinds_table(kinds: Iterable[Drill]) -> Table:
    """The kinds, what each is, and what must be made of it."""
    table = _table("kind", "what happens", "made by", "executors", "expected", "explained as")
    for drill in kinds:
        classes = " or ".join(drill.expected.classes) or "-"
        table.add_row(
            *map(
                escape,
                (drill.name, drill.what, made_by(drill), ", ".join(drill.executors), drill.expected.words, classes),
            )
        )
    return table


def made_by(drill: Drill) -> str:
    """Who injects the fault."""
    return " and ".join(["the app"] * bool(drill.app) + ["the harness"] * drill.from_outside)


def drilled_table(drilled: Iterable[Drilled]) -> Table:
    """What became of each drill; what is wrong is said below, by `problem_lines`."""
    table = _table("kind", "expected", "found", "explained", "survived", "seconds to find", "")
    for one in drilled:
        name = escape(one.drill.name)
        if one.skipped:
            table.add_row(name, *[""] * 5, f"[yellow]skipped: {escape(one.skipped)}[/]")
            continue
        verdict = "[green]right[/]" if one.right else "[red]wrong[/]"
        expected = one.drill.expected
        found = expected.words if one.found == str(expected) else one.found
        seconds = "" if one.seconds is None else f"{one.seconds:.1f}"
        survived = "yes" if one.survived else "[red]no[/]"
        table.add_row(
            name, escape(expected.words), escape(found), escape(one.explained or "-"), survived, seconds, verdict
        )
    return table


def drilled_line(one: Drilled) -> str:
    """What became of one drill in a line, with rich's markup."""
    name = escape(one.drill.name)
    if one.skipped:
        return f"{name}: [yellow]skipped[/]: {escape(one.skipped)}"
    seconds = "" if one.seconds is None else f", found in {one.seconds:.1f} s"
    verdict = "[green]right[/]" if one.right else f"[red]wrong[/]: {escape('; '.join(one.objections))}"
    return f"{name}: {escape(one.found or 'no record')}{seconds}: {verdict}"


def problem_lines(drilled: Iterable[Drilled]) -> list[str]:
    """What is wrong, a line each."""
    return [f"{one.drill.name}: {objection}" for one in drilled for objection in one.objections]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
