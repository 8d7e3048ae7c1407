"""Findings as text."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.markup import escape

from harness.doctor.finding import Finding, Level

WORST_FIRST: tuple[Level, ...] = ("problem", "warning", "note", "ok")
COLOURS = {"problem": "red", "warning": "yellow", "note": "cyan", "ok": "green"}


def lines(findings: Sequence[Finding], *, everything: bool) -> Iterator[str]:
    """Findings with rich's markup, the worst first; what is fine in one line, unless `everything` is asked for."""
    for finding in sorted(findings, key=lambda f: WORST_FIRST.index(f.level)):
        if finding.level == "ok" and not everything:
            continue
        yield f"[{COLOURS[finding.level]}]{finding.level:8}[/]{escape(f'{finding.check}: {finding.what}')}"
        for title, text in (("why", finding.why), ("fix", finding.fix)):
            if text:
                yield escape(f"        {title}: {text}")
    fine = sum(
        all(finding.level == "ok" for finding in of_check)
        for _, of_check in groupby(findings, key=lambda finding: finding.check)
    )
    if not everything:
        yield f"{fine} check{' is' if fine == 1 else 's are'} fine; --all shows them"
