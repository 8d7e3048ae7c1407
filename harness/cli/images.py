"""The commands that build, lock, push and pull images."""

import sys
from collections.abc import Sequence
from itertools import groupby

import click

from harness.base.errors import NoEngineError, UserError
from harness.base.interrupts import interruptible
from harness.cli.completion import complete_cells, complete_rocm, complete_selections
from harness.cli.shared import (
    INTERRUPTED,
    Settings,
    as_json,
    as_typed,
    confirm,
    err,
    known,
    pass_settings,
    print_json,
    print_lines,
)
from harness.environments.capabilities import choose_engine
from harness.environments.docker.dockerfile import cell_part, stack_part
from harness.environments.docker.dockerfile import render as render_cell
from harness.environments.docker.images import base_reference, cell_tag
from harness.host.engine import find_engine
from harness.matrix.cells import Cell
from harness.registry import image_commands
from harness.registry.oci import DIGEST
from harness.screen import tables
from harness.screen.steps import Steps
from harness.screen.terminal import echo

required_registry = click.option(
    "--registry", required=True, envvar="MATRIX_REGISTRY", metavar="HOST[/PATH]", help="Registry, e.g. ghcr.io/me."
)


@click.command()
@click.argument("cell", shell_complete=complete_cells)
@pass_settings
def render(settings: Settings, cell: str) -> None:
    """Print the Dockerfile of a cell."""
    echo(render_cell(_with_image(settings.cell(cell))), nl=False)


@click.command()
@click.argument("cells", nargs=-1, shell_complete=complete_cells)
@click.option(
    "--rocm",
    shell_complete=complete_rocm,
    help="Every stack of one ROCm version, or `cpu`, with the presets of the selection.",
)
@click.option(
    "--selection",
    default="default",
    show_default=True,
    shell_complete=complete_selections,
    help="Selection of the matrix file.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    envvar="DRY_RUN",
    help="Print the plan, and the Dockerfiles it would build; build nothing.",
)
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@as_json
@pass_settings
def build(
    settings: Settings,
    cells: tuple[str, ...],
    rocm: str | None,
    selection: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Build the images of cells (default: a selection). An image that already exists is not built again."""
    matrix = settings.matrix
    if cells and rocm:
        raise UserError("give either cells or --rocm")
    chosen = [settings.cell(cell) for cell in cells]
    known(selection, matrix.selections, "selection")
    if not chosen:
        chosen = image_commands.cells_of_rocm(matrix, rocm, selection) if rocm else matrix.select(selection)
    engine = choose_engine(chosen, None) if dry_run else image_commands.the_engine()
    plan = image_commands.plan_build(engine, chosen, settings.root)
    if as_json and dry_run:
        print_json(plan.plain)
        return
    for line in tables.build_lines(plan):
        err.print(line, soft_wrap=True, markup=False)
    if not (plan.build or plan.there):
        raise UserError("there is no image to build; the reasons are above")
    if dry_run:
        _print_dockerfiles(plan.build)
        return
    if engine is None:
        raise NoEngineError("no Docker engine answers")
    confirm(plan.download_gb, yes=yes)
    with interruptible(), Steps(err) as steps:
        try:
            images, problems = image_commands.build(engine, plan, steps.step)
        except KeyboardInterrupt:
            err.print("Interrupted: finished images are kept; the same command continues.")
            sys.exit(INTERRUPTED)
    if as_json:
        built = [{"cell": cell, "image": image.id, "tags": image.tags} for cell, image in images.items()]
        print_json({"images": built, "problems": problems})
    else:
        print_lines([cell_tag(settings.matrix.cells[cell]) for cell in images])
    if problems:
        raise UserError("\nmatrix: ".join(problems))


def _print_dockerfiles(cells: Sequence[Cell]) -> None:
    """Print the Dockerfile of each stack once, followed by what each of its cells adds."""
    for stack, of_stack in groupby(sorted(cells, key=lambda c: c.stack.name), key=lambda cell: cell.stack):
        echo(stack_part(stack, base_reference(stack)), nl=False)
        for cell in of_stack:
            echo(cell_part(cell))


def _with_image(cell: Cell) -> Cell:
    if "docker" not in cell.stack.executors or cell.stack.framework != "torch":
        raise UserError(f"cell {cell.id} has no image: {cell.excluded or 'its stack only runs as a process'}")
    return cell


@click.command()
@click.argument("stack")
@click.option("--python", metavar="VERSION", help="Lock for runs as processes on another Python than the image's.")
@click.option("--pypi", is_flag=True, help="Lock PyPI's build of torch, if PyTorch's index cannot be reached.")
@as_json
@pass_settings
def lock(settings: Settings, stack: str, python: str | None, pypi: bool, as_json: bool) -> None:
    """Resolve the wheel hashes and the base image digest of a stack, and write them into images/locks."""
    chosen = settings.matrix.stacks[known(stack, settings.matrix.stacks, "stack")]
    with interruptible(), Steps(err) as steps:
        noted = image_commands.lock(find_engine(), chosen, steps.step, python, "pypi" if pypi else "own")
    if as_json:
        print_json(noted)
    else:
        of_base = "" if python or pypi else f": base {noted['base']}, digest {noted['base_digest'] or 'open'}"
        echo(f"{noted['file']}{of_base}")


@click.command()
@click.argument("cell", shell_complete=complete_cells)
@required_registry
@click.option("--dry-run", is_flag=True, envvar="DRY_RUN", help="Print what would be pushed; push nothing.")
@as_json
@pass_settings
def push(settings: Settings, cell: str, registry: str, dry_run: bool, as_json: bool) -> None:
    """Push a cell's image to a registry, with the credentials of `docker login`.

    The command also pushes what the image was made from and what it contains, signed with your key (`matrix keys`).
    """
    chosen = _with_image(settings.cell(cell))
    if dry_run:
        plan = image_commands.plan_push_of_cell(image_commands.the_engine(), chosen, registry)
        print_json({"cell": cell, **plan.plain}) if as_json else echo(f"{cell}: would send {plan.summary}")
        return
    with interruptible(), Steps(err) as steps:
        reference = image_commands.push_cell(image_commands.the_engine(), chosen, registry, steps.step)
    print_json({"cell": cell, "reference": reference}) if as_json else echo(reference)


@click.command()
@click.argument("cell", shell_complete=complete_cells)
@required_registry
@click.option("--digest", help="Digest of the image, sha256:... (default: the image tagged with the cell's name).")
@as_json
@pass_settings
def pull(settings: Settings, cell: str, registry: str, digest: str | None, as_json: bool) -> None:
    """Pull a cell's image from a registry, so that `matrix run` uses it instead of building one."""
    chosen = _with_image(settings.cell(cell))
    if digest and not DIGEST.fullmatch(digest):
        raise UserError(f"--digest {digest}: not sha256: and 64 hexadecimal digits; `matrix push` prints it")
    with interruptible(), Steps(err) as steps:
        listed = settings.matrix.signatures.keys
        told = image_commands.pull_cell(image_commands.the_engine(), chosen, registry, digest, listed, steps.step)
    if as_json:
        print_json(told)
    else:
        echo(f"{told['tag']} is {told['image']}, {whose_and_used(told['signed_by'], current=told['current'])}")


def whose_and_used(signed_by: Sequence[str], *, current: bool) -> str:
    """Say in words who signed an image from elsewhere, and whether runs on this host use it."""
    other = "uses another: one was built here, or the app, lock or preset of this checkout differ"
    signed = f"signed by {' and '.join(signed_by)}" if signed_by else "not signed"
    return f"{signed}; {as_typed('`matrix run`')} {'uses it' if current else other}"
