"""A report as text."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.report.model import Report

TEMPLATES = Path(__file__).parent


@cache
def _environment(*, escape: bool) -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=escape,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def to_html(report: Report) -> str:
    """One self-contained page that opens offline."""
    return _environment(escape=True).get_template("report.html.j2").render(report=report)


def to_markdown(report: Report) -> str:
    """The same facts as Markdown tables."""
    return _environment(escape=False).get_template("report.md.j2").render(report=report)
