"""Write a report as Markdown: the answers, and tables of verdicts by stack and preset."""

import time
from collections.abc import Iterable, Iterator, Sequence

from harness.report.model import Group, PassCount, Report


def to_markdown(report: Report) -> str:
    """Return the answers and the verdicts; the runs themselves are in report.json and report.html."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    answers = report.answers
    yield "# Which environment trains to the end"
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.made))
    yield from ("", f"{report.headline} Made {made}.")
    for caution in report.cautions:
        yield from ("", f"> {_plain(caution)}")
    yield from _section("Which cell to use", answers.use)
    yield from _section("What to type next", [f"`{step.command}`: {step.why}" for step in answers.next])
    yield from _section("What fails, why, and how often", answers.failures)
    yield from _section("What the notes' variables changed", answers.notes)
    yield from _section("The user's own criteria", answers.criteria)
    yield from ("", "## Verdicts by stack and preset")
    for group in report.groups:
        yield from _grid(group)
    yield from _evidence(report)
    yield from _section(
        "Excluded cells", [f"{one.reason.rstrip('.')}. Cells: {', '.join(one.cells)}." for one in report.excluded]
    )


def _section(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield from ("", f"## {title}", "", *(f"- {_plain(sentence)}" for sentence in sentences))


def _grid(group: Group) -> Iterator[str]:
    yield from ("", f"{group.scope}: workload {group.workload}, host with {group.host}, executor {group.executor}", "")
    rows = [group.places[n : n + len(group.stacks)] for n in range(0, len(group.places), len(group.stacks))]
    yield from _table(["preset", *group.stacks], ([row[0].preset, *(_count(p.count) for p in row)] for row in rows))


def _evidence(report: Report) -> Iterator[str]:
    groups = {group.id: group for group in report.groups}
    names = ["cell", "scope", "workload", "ran on", "verdict", "completed", "pass rate", "why it failed", "not counted"]
    rows = [
        [
            f"{one.cell}{' (stale)' if one.stale else ''}",
            groups[one.group].scope,
            groups[one.group].workload,
            one.ran_on,
            one.tier,
            f"{one.passes} of {one.runs}{f' ({one.imported} imported)' if one.imported else ''}",
            f"{one.low:.3f} to {one.high:.3f}",
            _counts(one.diagnoses),
            _counts(one.not_counted),
        ]
        for one in report.verdicts
    ]
    yield from ("", "## Evidence that may be counted together", "")
    yield from _table(names, rows)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(names)
    yield "|" + "---|" * len(names)
    yield from map(_row, rows)


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(value).replace("|", "\\|") for value in values) + " |"


def _count(count: PassCount) -> str:
    return f"{count.tier} {count.passes} of {count.runs}" if count.runs else count.tier


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in found.items())


def _plain(text: str) -> str:
    """Return the text on one line, without HTML markup."""
    return " ".join(text.split()).replace("<", "&lt;")
