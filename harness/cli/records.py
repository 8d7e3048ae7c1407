"""The commands that write files from the records: `matrix report` and `matrix index`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.answered import LastAnswer
from harness.cli.shared import Settings, as_json, err, out, pass_settings, print_json, print_lines, warn
from harness.evidence.index import rebuild_index
from harness.evidence.index_file import index_file
from harness.screen.terminal import echo

if TYPE_CHECKING:
    from harness.report.write import BuiltReport


@click.command()
@click.option(
    "--share",
    "page",
    is_flag=False,
    flag_value=Path(),
    type=click.Path(path_type=Path),
    metavar="[FILE.html]",
    help="Instead write one anonymous page to post (default: share.html among the results), and beside it its records "
    "for `matrix import`.",
)
@click.option("--force", is_flag=True, help="With --share FILE: replace existing files.")
@click.option("--hide", multiple=True, metavar="NAME", help="With --share: also remove this name.")
@as_json
@pass_settings
def report(settings: Settings, page: Path | None, force: bool, hide: tuple[str, ...], as_json: bool) -> None:
    """Write the report into the results folder: report.html, .md, .json, and .xml (JUnit)."""
    if page is not None:
        # A page among the results is replaced without --force, like the other reports.
        own = settings.results.folder / "share.html"
        _share(settings, page if page.name else own, hide, as_json=as_json, force=force or not page.name)
        return
    if hide or force:
        raise UserError(f"{'--hide' if hide else '--force'} is for --share: the report itself stays on this host")
    built = report_on(settings)
    files = [str(file) for file in built.write(settings.results)]
    if as_json:
        print_json({"files": files, "answer": built.report.answer.model_dump(mode="json")})
    else:
        # Imported here because charts take time to import, and only a printed answer needs them.
        from harness.screen.answer import print_answer  # noqa: PLC0415

        print_answer(out, built.report.answer)
        print_lines(files)


@click.command()
@as_json
@pass_settings
def index(settings: Settings, as_json: bool) -> None:
    """Rebuild records.db from the run folders, which are authoritative."""
    records, damaged = rebuild_index(settings.results)
    warn(damaged)
    if as_json:
        print_json({"records": records, "damaged": damaged})
    else:
        echo(f"{many(records, 'record')} in {index_file(settings.results.folder)}")


def _share(settings: Settings, page: Path, hide: tuple[str, ...], *, as_json: bool, force: bool) -> None:
    # Imported here because only --share needs it.
    from harness.report.share_page import write_shared  # noqa: PLC0415

    shared = write_shared(settings.results, settings.matrix, page, settings.root, hide, force=force)
    warn([f"left out: {told}" for told in shared.archive.left_out])
    if as_json:
        print_json({"page": str(shared.page), **asdict(shared.archive), "file": str(shared.archive.file)})
    else:
        print_lines([f"{shared.page}: {many(shared.archive.runs, 'run')}; post {shared.archive.file} beside it"])


@contextmanager
def report_may_fail(after: str) -> Iterator[None]:
    """Only warn if the block cannot update the report: what was done before, the `after`, stands all the same."""
    try:
        yield
    except (UserError, OSError) as error:
        warn([f"the report could not be updated after this {after}: {error}"])


def report_on(settings: Settings, answer: LastAnswer | None = None) -> "BuiltReport":
    """Return the report, and warn of records that could not be read. `answer` is as in `built_report`."""
    # Imported here: statistics and charts take a second to import, which must not delay the start of a campaign.
    from harness.report.write import built_report  # noqa: PLC0415
    from harness.screen.steps import Steps  # noqa: PLC0415

    # With thousands of records this takes a while, so show what is being done.
    with Steps(err) as steps:
        steps.step("writing the report")
        built = built_report(settings.results, settings.matrix, settings.root, settings.invocation, answer)
    warn(list(built.damaged))
    return built
