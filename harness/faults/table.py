"""Tables and lines that show injected faults."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from harness.faults.injection import Injection
from harness.faults.kinds import FaultKind


def kinds_table(kinds: Iterable[FaultKind]) -> Table:
    """Return a table of the kinds of faults, with how each is injected and what is expected."""
    table = _table("kind", "what happens", "injected by", "executors", "expected", "explained as")
    for kind in kinds:
        classes = " or ".join(kind.expected.classes) or "-"
        table.add_row(kind.name, kind.what, injected_by(kind), ", ".join(kind.executors), kind.expected.words, classes)
    return table


def injected_by(kind: FaultKind) -> str:
    """Return in words who injects the fault."""
    return " and ".join(["the app"] * bool(kind.app) + ["the harness"] * kind.by_harness)


def injection_table(injections: Iterable[Injection]) -> Table:
    """Return a table of the results; `problem_lines` has the objections."""
    table = _table("kind", "expected", "found", "explained", "survived", "seconds to find", "")
    for one in injections:
        name = one.kind.name
        if one.skipped:
            table.add_row(name, *[""] * 5, Text(f"skipped: {one.skipped}", "yellow"))
            continue
        verdict = Text("as expected", "green") if one.as_expected else Text("not as expected", "red")
        expected = one.kind.expected
        found = expected.words if one.found == str(expected) else one.found
        seconds = "" if one.seconds is None else f"{one.seconds:.1f}"
        survived = "yes" if one.survived else Text("no", "red")
        table.add_row(name, expected.words, found, one.explained or "-", survived, seconds, verdict)
    return table


def injection_line(one: Injection) -> str:
    """Return the result of one fault as a line of rich markup."""
    name = escape(one.kind.name)
    if one.skipped:
        return f"{name}: [yellow]skipped[/]: {escape(one.skipped)}"
    seconds = "" if one.seconds is None else f", found in {one.seconds:.1f} s"
    verdict = (
        "[green]as expected[/]" if one.as_expected else f"[red]not as expected[/]: {escape('; '.join(one.objections))}"
    )
    run = f" ({one.record.intent.run_id})" if one.record else ""
    return f"{name}: {escape(one.found or 'no record')}{seconds}: {verdict}{run}"


def problem_lines(injections: Iterable[Injection]) -> list[str]:
    """Return the objections, one a line."""
    return [f"{one.kind.name}: {objection}" for one in injections for objection in one.objections]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    return table
