"""Write a report as one HTML file that opens offline and loads nothing from elsewhere."""

import base64
import gzip
import hashlib
import re
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from harness.evidence.verdicts.recommend import TIERS, strength
from harness.evidence.verdicts.words import TIERS_IN_WORDS, hours_in_words
from harness.report.model import AnswerPlace, Report, VerdictLine
from harness.report.sections.ages import steps
from harness.report.sections.code_evidence import counts_in_words
from harness.report.sections.grid import NOT_COUNTED
from harness.report.shades import scale, shade
from harness.report.words import utc

HERE = Path(__file__).parent
CPU = "cpu"
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:h|min|s|GB)\b|%)")


def to_html(report: Report) -> str:
    """Return the page. Its Content-Security-Policy allows only its own two scripts, whatever text a log contains."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    plotly, packed = _plotly()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            tiers=TIERS_IN_WORDS.partition(";")[0],
            not_counted=NOT_COUNTED,
            groups={group.id: group for group in report.groups},
            compared=_compared(report),
            made=utc(report.made),
            scale=Markup(scale()),  # noqa: S704
            data=Markup(as_data(report)),  # noqa: S704
            script=Markup(script),  # noqa: S704
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
            plotly=packed,
            scripts=f"'{_digest(script)}' '{plotly}'",
        )
    )


def as_data(report: Report) -> str:
    """Return the report as JSON for a script element, escaped so that no text can close the element."""
    return report.model_dump_json(by_alias=True).replace("<", "\\u003c")


@cache
def _plotly() -> tuple[str, str]:
    """Return digest and compressed text of the plotting library, which is five times as large as the rest."""
    library = get_plotlyjs()
    # Level 4 takes a third of the time of the highest level and gives a twentieth more bytes; a user waits after
    # Ctrl-C.
    packed = gzip.compress(library.encode(), compresslevel=4, mtime=0)
    return _digest(library), base64.b64encode(packed).decode()


def _digest(script: str) -> str:
    """Return the digest by which a Content-Security-Policy allows a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sentence"] = _sentence
    environment.filters["answer"] = _answer
    environment.filters["breakable"] = _breakable
    environment.filters["preset"] = _preset
    environment.filters["cell_link"] = _cell_link
    environment.filters["shade"] = shade
    environment.filters["short"] = _short
    environment.filters["hours"] = hours_in_words
    environment.filters["rank"] = TIERS.index
    environment.filters["utc"] = utc
    environment.filters["steps"] = steps
    environment.filters["counts_in_words"] = counts_in_words
    return environment


def _compared(report: Report) -> list[VerdictLine]:
    """Return the verdicts, the most useful first: those that hold now, on GPUs, and as in the answer."""
    scopes = {group.id: group.scope for group in report.groups}
    return sorted(
        report.verdicts,
        key=lambda one: (not one.stale, scopes[one.group] != CPU, *strength(one.tier, one.mtbf_low, one.low)),
        reverse=True,
    )


def _cell_link(place: AnswerPlace) -> str:
    return f"#/cell/{quote(place.cell, safe='')}{f'/{place.group}' if place.group else ''}"


def _preset(cell: str, stack: str) -> str:
    return cell.removeprefix(f"{stack}-")


def _short(bound: str) -> str:
    """Return a bound shortened for a grid cell, without the reason for a missing bound."""
    return bound.replace(" above ", " > ").partition(":")[0]


def _breakable(name: str) -> Markup:
    """Return a name with line break opportunities after its hyphens."""
    return Markup("-<wbr>").join(name.split("-"))


def _answer(text: str) -> Markup:
    """Return the answer with its first clause, which says what to use, emphasised."""
    head, clause_end, rest = text.partition("; ")
    # The layout already shows where the clause ends, but a screen reader needs the punctuation.
    follows = Markup('<span class="unseen">{}</span><span class="rest">{}</span>').format(clause_end, _sentence(rest))
    return Markup("<strong>{}</strong>{}").format(_sentence(head), follows if rest else "")


def _sentence(text: str) -> Markup:
    """Return a sentence with its backquoted words as code; no line ends between a number and its unit."""
    parts = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else Markup("&nbsp;").join(BEFORE_UNIT.split(part))
        for number, part in enumerate(parts)
    )
