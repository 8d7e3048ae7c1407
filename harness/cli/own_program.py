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
from harness.environments.docker.images import find
from harness.environments.docker.own_images import is_own
from harness.host.engine import find_engine
from harness.host.fingerprint import read_host
from harness.screen.terminal import echo

DEVCONTAINER = Path(".devcontainer/devcontainer.json")
# The label of an image whose content editors merge into the file, also permissions (containers.dev, "Image metadata").
METADATA = "devcontainer.metadata"


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
    _refuse_metadata(outside.cell, values["image"])
    write_durably(output, (json.dumps(values, indent=2) + "\n").encode())
    if as_json:
        print_json({"file": str(output), "devcontainer": values})
    else:
        echo(as_typed(f"Wrote {output}; `matrix build {outside.cell}` makes its image"))


def _refuse_metadata(cell: str, name: str) -> None:
    """Refuse an image of others that would grant itself more; one built here has only what its base was chosen for."""
    try:
        engine = find_engine()
    except UserError:
        # The image of a host without an engine is elsewhere.
        return
    image = find(engine, name) if engine else None
    if image and METADATA in image.labels and not is_own(image.id):
        raise UserError(
            f"{name}: was not built here, and has the label {METADATA}, which can grant it all permissions in editors; "
            f"`docker rmi --force {image.id[:19]}`, then `matrix build {cell}`"
        )


def _outside(settings: Settings, cell: str) -> CellOutside:
    host = read_host(settings.root)
    chosen = best_cell(settings.matrix, host) if cell == BEST else settings.cell(cell)
    return cell_outside(chosen, host, Path.cwd(), settings.root)
