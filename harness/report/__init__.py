"""Turns records into a report: one self-contained HTML file, Markdown, JUnit XML and JSON."""
