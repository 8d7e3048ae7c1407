"""`matrix simulate`: writes a simulated host."""

from pathlib import Path

import click

from harness.base.errors import UserError
from harness.base.files.storage import cannot_be_written
from harness.cli.shared import as_json, as_typed, print_json
from harness.host.simulated import dual_7900xt
from harness.screen.terminal import echo


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def simulate(folder: Path, as_json: bool) -> None:
    """Write a simulated host (two RX 7900 XT) into FOLDER, for `matrix --root FOLDER ...`.

    It writes the files that Linux and the amdgpu driver would have in /sys, /proc and /dev. Edit them to try other
    situations: other numbers, a missing file, a line in dev/kmsg. Records of runs on it say so and never count.

    \b
    matrix simulate HOST
    matrix --root HOST doctor
    matrix --root HOST plan
    """  # noqa: D301 - click needs the character itself
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        why = "is a folder with files in it" if folder.is_dir() else "is not a folder"
        raise UserError(f"{folder}: {why}; name a new one, or an empty one")
    try:
        host = dual_7900xt(folder.resolve())
    except OSError as error:
        raise cannot_be_written(folder, error) from None
    gpus = [f"dev/dri/{minor}" for minor in host.render_nodes]
    if as_json:
        print_json({"root": str(folder), "render_nodes": gpus})
    else:
        echo(as_typed(f"Wrote a host with {len(gpus)} RX 7900 XT into {folder}; try `matrix --root {folder} doctor`"))
