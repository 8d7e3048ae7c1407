"""The commands that let a program of the user's own use a cell: `matrix env` and `matrix devcontainer`."""

import json
from pathlib import Path

import click

from harness.base.errors import UserError
from harness.base.files.storage import write_durably
from harness.campaign.bench.plan import BEST
from harness.campaign.by_hand import best_cell
from harness.campaign.own_program import CellOutside, cell_outside, shell_lines
from harness.cli.completion import complete_cells_and_best
from harness.cli.shared import Settings, as_json, as_typed, pass_settings, print_json
from harness.host.fingerprint import read_host
from harness.screen.terminal import echo

DEVCONTAINER = Path(".devcontainer/devcontainer.json")


@click.command()
@click.argument("cell", shell_complete=complete_cells_and_best)
@click.option("--dotenv", "form", flag_value="dotenv", help="Print a .env file, for `docker run --env-file` too.")
@click.option("--docker", "form", flag_value="docker", help="Print only the `docker run` line, for train.py here.")
@as_json
@pass_settings
def env(settings: Settings, cell: str, form: str | None, as_json: bool) -> None:
    """Print what CELL sets, for a program of your own: variables, a `docker run` line.

    CELL `best` is the first plain cell here that suits the driver. The line grants only the permissions that a run has.
    Nothing is built, and nothing is recorded for `matrix status`.

    \b
    eval "$(matrix env rocm6.3-torch2.9.1-plain)"
    matrix env rocm6.3-torch2.9.1-plain --dotenv > .env
    """  # noqa: D301 - click needs the character itself
    outside = _outside(settings, cell)
    if as_json:
        line = outside.docker_run() if outside.container else None
        print_json(
            {"cell": outside.cell, "variables": outside.variables, "python": str(outside.python), "docker_run": line}
        )
    elif form == "dotenv":
        echo(outside.dotenv, nl=False)
    else:
        echo(outside.docker_run() if form == "docker" else as_typed(shell_lines(outside)))


@click.command()
@click.argument("cell", shell_complete=complete_cells_and_best)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=DEVCONTAINER,
    show_default=True,
    help="File to write.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@as_json
@pass_settings
def devcontainer(settings: Settings, cell: str, output: Path, force: bool, as_json: bool) -> None:
    """Write a devcontainer.json of CELL: its image, with the GPUs of this host.

    It grants the permissions that a run has, and in addition network access and a writable root file system. An editor
    that knows the format opens the folder in it (`matrix build CELL` makes the image).
    """
    if output.exists() and not force:
        raise UserError(f"{output}: is there already; give --force to replace it, or another --output")
    outside = _outside(settings, cell)
    values = outside.devcontainer()
    write_durably(output, (json.dumps(values, indent=2) + "\n").encode())
    if as_json:
        print_json({"file": str(output), "devcontainer": values})
    else:
        echo(as_typed(f"Wrote {output}; `matrix build {outside.cell}` makes its image"))


def _outside(settings: Settings, cell: str) -> CellOutside:
    host = read_host(settings.root)
    chosen = best_cell(settings.matrix, host) if cell == BEST else settings.cell(cell)
    return cell_outside(chosen, host, Path.cwd(), settings.root)
