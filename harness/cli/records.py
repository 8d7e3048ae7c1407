"""The commands that write down what the records show."""

from typing import TYPE_CHECKING

import click

from harness.cli.shared import Settings, as_json, out, pass_settings, print_json, print_lines, warn
from harness.evidence.index import rebuild_index
from harness.screen.terminal import echo

if TYPE_CHECKING:
    from harness.report.model import Command
    from harness.report.write import WrittenReport


@click.command()
@as_json
@pass_settings
def report(settings: Settings, as_json: bool) -> None:
    """Write the report into the results folder: report.html, .md, .json, and .xml (JUnit)."""
    written = report_on(settings)
    files = [str(file) for file in written.files]
    if as_json:
        print_json({"files": files, "answer": written.answer.model_dump(mode="json")})
    else:
        # Charts take their time to import, and no answer is printed without them.
        from harness.screen.answer import print_answer  # noqa: PLC0415

        print_answer(out, written.answer)
        print_lines(files)


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


def report_on(settings: Settings, unfinished: "Command | None" = None, concluded: str | None = None) -> "WrittenReport":
    """Write the reports, and warn of what could not be read; `unfinished`, `concluded` as in `build_report`."""
    # Statistics and charts take a second to import: a campaign is not to wait for them before it begins.
    from harness.report.write import write_reports as write  # noqa: PLC0415

    written = write(settings.results, settings.matrix, settings.root, settings.invocation, unfinished, concluded)
    warn(list(written.damaged))
    return written
