"""The commands that write down what the records show."""

from pathlib import Path

import click

from harness.cli.shared import Settings, as_json, pass_settings, print_json, print_lines, warn
from harness.evidence.index import rebuild_index
from harness.screen.terminal import echo


@click.command()
@as_json
@pass_settings
def report(settings: Settings, as_json: bool) -> None:
    """Write the report into the results folder: report.html, .md, .json, and .xml (JUnit)."""
    files = report_on(settings)
    if as_json:
        print_json({"files": [str(file) for file in files]})
    else:
        print_lines([str(file) for file in files])


@click.command()
@as_json
@pass_settings
def index(settings: Settings, as_json: bool) -> None:
    """Rebuild records.db from the run folders, which are the truth."""
    records, damaged = rebuild_index(settings.results)
    warn(damaged)
    if as_json:
        print_json({"records": records, "damaged": damaged})
    else:
        echo(f"{records} records in {settings.results.folder / 'records.db'}")


def report_on(settings: Settings) -> list[Path]:
    """Write the reports, and warn of what could not be read; returns their files."""
    # Statistics and charts take a second to import: a campaign is not to wait for them before it begins.
    from harness.report.write import write_reports as write  # noqa: PLC0415

    files, damaged = write(settings.results, settings.matrix, settings.root)
    warn(damaged)
    return files
