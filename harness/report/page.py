"""Write a report as one HTML file that opens offline and loads nothing from elsewhere."""

import base64
import gzip
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from harness.report.ages import steps
from harness.report.code_evidence import counts_in_words
from harness.report.grid import NOT_COUNTED
from harness.report.model import Report
from harness.report.words import utc

HERE = Path(__file__).parent


def to_html(report: Report) -> str:
    """Return the page. Its Content-Security-Policy allows only its own two scripts, whatever a log contains."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    plotly, packed = _plotly()
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            not_counted=NOT_COUNTED,
            groups={group.id: group for group in report.groups},
            made=utc(report.made),
            data=Markup(as_data(report)),  # noqa: S704
            script=Markup(script),  # noqa: S704
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
            plotly=packed,
            scripts=f"'{_digest(script)}' '{plotly}'",
        )
    )


def as_data(report: Report) -> str:
    """Return the report as JSON for a script element, escaped so that no text can end the element."""
    return report.model_dump_json(by_alias=True).replace("<", "\\u003c")


@cache
def _plotly() -> tuple[str, str]:
    """Return digest and text of the plotting library, compressed: it is five times as large as everything else."""
    library = get_plotlyjs()
    return _digest(library), base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()


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
    environment.filters["utc"] = utc
    environment.filters["steps"] = steps
    environment.filters["counts_in_words"] = counts_in_words
    return environment


def _sentence(text: str) -> Markup:
    """Return a sentence with its backquoted words as code."""
    parts = text.split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )
