"""`matrix export` and `matrix import`: combine records of several hosts."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from rich.progress import track

from harness.base.wording import many
from harness.cli.completion import complete_cells
from harness.cli.shared import Settings, as_json, err, known, pass_settings, print_json
from harness.evidence.index import Index
from harness.host.fingerprint import read_host
from harness.registry.share.exports import export_records
from harness.registry.share.imports import import_records
from harness.screen.terminal import echo

Item = TypeVar("Item")


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("cells", nargs=-1, shell_complete=complete_cells)
@click.option("--hide", multiple=True, metavar="NAME", help="Also remove this name, such as that of another host.")
@as_json
@pass_settings
def export_(settings: Settings, file: Path, cells: tuple[str, ...], hide: tuple[str, ...], as_json: bool) -> None:
    """Write the records into FILE (.tar.gz), for `matrix import` on another host.

    It has all records, or only the runs of CELLS. Names of hosts and users, addresses, and paths are removed. Models
    are not exported, and neither are runs of programs of your own; the files that explain a run are.
    """
    results = settings.results_to_read
    run = {row.cell for row in Index(results).rows()} if cells else set()
    for cell in cells:
        if cell not in run:
            known(cell, settings.matrix.cells, "cell")
    exported = export_records(results, file, read_host(settings.root), hide, _shown("exporting"), cells=cells)
    for told in exported.left_out:
        echo(f"matrix: left out: {told}", err=True)
    if as_json:
        print_json({**asdict(exported), "file": str(exported.file)})
    else:
        echo(f"{many(exported.runs, 'run')} in {exported.file}, SHA-256 {exported.sha256}")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@as_json
@pass_settings
def import_(settings: Settings, files: tuple[Path, ...], as_json: bool) -> None:
    """Add the records in FILES, which `matrix export` made on other hosts.

    Nothing that is already here is changed; a run that is already here is skipped. Imported runs are shown as such.
    """
    host = read_host(settings.root)
    told = []
    for file in files:
        imported = import_records(settings.results, file, host, _shown("importing"))
        for run_id in imported.differing:
            echo(f"matrix: {run_id}: is here with another content, which stays", err=True)
        told.append({**asdict(imported), "file": str(file)})
        if not as_json:
            echo(f"{file}: {many(len(imported.runs), 'run')} added, {imported.duplicates} here already")
    if as_json:
        print_json({"imported": told})


def _shown(what: str) -> Callable[[Iterable[Item]], Iterable[Item]]:
    """Return a function that passes items on and shows a progress bar on a terminal."""
    return partial(track, description=what, console=err, transient=True, disable=not err.is_terminal)
