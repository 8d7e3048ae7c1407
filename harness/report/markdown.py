"""Write a report as Markdown: the answers, and tables of verdicts by stack and preset."""

import re
from collections.abc import Iterable, Iterator, Sequence

from harness.evidence.verdicts.words import TIERS_IN_WORDS
from harness.report.model import CodeEvidence, CodeRun, Group, PassCount, Report
from harness.report.sections.code_evidence import counts_in_words
from harness.report.words import utc


def to_markdown(report: Report) -> str:
    """Return the answers and the verdicts; the runs themselves are in report.json and report.html."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    answer, answers = report.answer, report.answers
    yield "# Which environment trains to the end"
    yield from ("", f"**{_plain(answer.sentence)}**")
    yield from ("", f"Next: `{answer.next.command}` (it {_plain(answer.next.why)})")
    if answer.train_now:
        yield from ("", f"Or train now: `{answer.train_now.command}` (it {_plain(answer.train_now.why)})")
    yield from _section("What failed most here", answer.failures)
    yield from ("", f"{report.headline} Made {utc(report.made)}.")
    for caution in report.cautions:
        yield from ("", f"> {_plain(caution)}")
    yield from _section("Which cell to use", answers.use)
    yield from _section("What else to type", [f"`{step.command}`: {step.why}" for step in report.other_commands])
    if answers.failures != answer.failures:
        yield from _section("What fails, why, and how often", answers.failures)
    yield from _section("What the variables of presets `notes-...` changed", answers.notes)
    yield from _section("The three goals: `immediate`, `full`, `production`", answers.criteria)
    yield from ("", "## Verdicts by stack and preset")
    if report.groups:
        yield from ("", _plain(TIERS_IN_WORDS))
    for group in report.groups:
        yield from _grid(group)
    yield from _evidence(report)
    yield from _section("Failures by age of the run", [one.said for one in report.failure_ages])
    yield from _section(
        "Excluded cells", [f"{one.reason.rstrip('.')}. Cells: {', '.join(one.cells)}." for one in report.excluded]
    )
    yield from _code(report.code)


def _section(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield from ("", f"## {title}", "", *(f"- {_plain(sentence)}" for sentence in sentences))


def _grid(group: Group) -> Iterator[str]:
    told = f"{group.scope}: workload {group.work}, host with {group.host}, executor {group.executor}"
    yield from ("", _plain(told), "")
    rows = [group.places[n : n + len(group.stacks)] for n in range(0, len(group.places), len(group.stacks))]
    yield from _table(["preset", *group.stacks], ([row[0].preset, *(_count(p.count) for p in row)] for row in rows))


def _evidence(report: Report) -> Iterator[str]:
    groups = {group.id: group for group in report.groups}
    names = ["cell", "scope", "workload", "ran on", "verdict", "completed", "pass rate", "why it failed", "not counted"]
    rows = [
        [
            f"{one.cell}{' (stale)' if one.stale else ''}",
            groups[one.group].scope,
            groups[one.group].work,
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


def _code(code: CodeEvidence) -> Iterator[str]:
    if not code.runs and not code.unreadable:
        return
    yield from ("", f"## {code.title}", "", code.about)
    yield from ("", *(f"- Left out: {_quoted(problem)}" for problem in code.unreadable))
    for run in code.runs:
        yield from _code_run(run)


def _code_run(run: CodeRun) -> Iterator[str]:
    yield from ("", f"### {_quoted(run.ran_on)}", "")
    said = (
        f"{utc(run.started)}, {run.seconds:.0f} s",
        run.revision,
        run.software,
        run.file,
        counts_in_words(run.counts),
    )
    yield from (f"- {_quoted(text)}" for text in (*said, *(f"Earlier: {line}" for line in run.older)))
    yield ""
    rows = (
        [_quoted(text) for text in (row.verdict, f"{row.row}{' (GPU only)' * row.gpu_only}", row.shows, row.detail)]
        + ["" if row.seconds is None else f"{row.seconds:.1f}", "yes" if row.shown_red else "never"]
        for row in run.rows
    )
    yield from _table(["verdict", "row", "what it shows", "detail", "seconds", "seen to fail"], rows)


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
    """Return the text on one line, without HTML markup, links and images: a cause may quote another machine."""
    return _line(text).replace("](", "]\\(").replace("![", "!\\[")


def _quoted(text: str) -> str:
    """Return the text of another machine, without any markup: no link, image or code."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", _line(text))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")
