"""Records -> a report, as one self-contained HTML file and as Markdown."""

from harness.report.model import Report, build_report
from harness.report.write import to_html, to_markdown

__all__ = ["Report", "build_report", "to_html", "to_markdown"]
