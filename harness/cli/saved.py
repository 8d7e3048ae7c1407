"""`matrix save` and `matrix load`: images in a folder, for a host without a registry."""

from dataclasses import asdict
from pathlib import Path

import click

from harness.base.interrupts import interruptible
from harness.cli.completion import complete_cells
from harness.cli.images import whose_and_used
from harness.cli.shared import Settings, as_json, err, pass_settings, print_json, print_lines
from harness.registry.image_commands import the_engine
from harness.registry.saved.load import load_cells
from harness.registry.saved.save import save_cells
from harness.screen.steps import Steps


@click.command()
@click.argument("cells", nargs=-1, shell_complete=complete_cells)
@click.argument("folder")
@as_json
@pass_settings
def save(settings: Settings, cells: tuple[str, ...], folder: str, as_json: bool) -> None:
    """Save the images of CELLS to FOLDER, for example on a USB stick, for a host without a registry.

    \b
    matrix save cpu-plain rocm6.3-torch2.9.1-plain /media/stick/images
    matrix load /media/stick/images              # on the other host

    FOLDER is an OCI image layout, which other tools read too. A layer that images share is stored once, and existing
    layers are not written again: a further preset adds kilobytes, an edit of the app megabytes. After an interruption
    the same command continues. Each image comes with its signed statements: what it was made from, what it contains,
    and the evidence of its known-good tags.
    """  # noqa: D301 - click needs the character itself
    matrix = settings.matrix
    place = Path(folder)
    # As text, so that ./ before the name of a cell makes it a folder.
    if (is_cell := folder in matrix.cells and not place.exists()) or not cells:
        lacking = "FOLDER" if is_cell else "CELLS..."
        raise click.MissingParameter(None, click.get_current_context(), param_hint=lacking)
    chosen = [settings.cell(cell) for cell in dict.fromkeys(cells)]
    with interruptible(), Steps(err) as steps:
        saved = save_cells(the_engine(), chosen, place.absolute(), steps.step)
    if as_json:
        print_json({"folder": str(place), "images": [asdict(one) for one in saved]})
    else:
        print_lines([f"{one.cell} is {one.digest}, with {one.statements} signed statements" for one in saved])


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("cells", nargs=-1)
@as_json
@pass_settings
def load(settings: Settings, folder: Path, cells: tuple[str, ...], as_json: bool) -> None:
    """Load the images of CELLS (default: all) from a FOLDER that `matrix save` wrote.

    Every byte of an image is checked against its digest before the engine gets any of it; a changed image is refused.
    An image that is already here is not loaded again. `matrix run` uses an image that this checkout would build
    identically; `matrix verify CELL --offline` says who signed what about an image.
    """
    with interruptible(), Steps(err) as steps:
        loaded = load_cells(the_engine(), folder.absolute(), cells, settings.matrix, steps.step)
    if as_json:
        print_json({"folder": str(folder), "images": [asdict(one) for one in loaded]})
        return
    for one in loaded:
        more = whose_and_used(one.signed_by, current=one.current)
        print_lines([f"{one.tag} {'was here' if one.was_here else 'is loaded'}, {more}"])
