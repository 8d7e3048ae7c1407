"""`matrix completion`, and the values that a shell completes: names of the matrix file and ids of runs."""

import shlex
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from harness.base.errors import UserError
from harness.cli.shared import Settings
from harness.screen.terminal import echo

if TYPE_CHECKING:
    from harness.matrix.cells import Matrix

PROGRAM = "matrix"
VARIABLE = "_MATRIX_COMPLETE"
# In place of the id of a run.
LATEST = "latest"
Names = Callable[[Settings], Collection[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of `matrix` for SHELL: bash, zsh or fish.

    \b
    bash: source <(.venv/bin/matrix completion bash)
    zsh:  source <(.venv/bin/matrix completion zsh)
    fish: .venv/bin/matrix completion fish | source

    It completes commands, options, ids of runs, and names of the matrix file: cells that may be run, selections,
    stages, workloads, presets, versions of ROCm.
    """  # noqa: D301 - click needs the character itself
    from harness.cli.main import cli  # noqa: PLC0415

    found = get_completion_class(shell)
    if found is None:
        raise UserError(f"nothing completes for {shell}; give bash, zsh or fish")
    source = found(cli, {}, PROGRAM, VARIABLE).source()
    # bash asks the program that was typed. zsh and fish look for `matrix` on the PATH, where a checkout's is not.
    program = shlex.quote(str(Path(sys.argv[0]).absolute()))
    source = source.replace(f"(( ! $+commands[{PROGRAM}] )) && return 1", "").replace(f" {PROGRAM})", f" {program})")
    echo(source)


def completes(names: Names) -> Completer:
    """Return a completer that offers names which are read from the settings."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        params = context.find_root().params
        # Completion must never print an error into the user's shell.
        with suppress(UserError, OSError):
            settings = Settings(params["file"], params["results"], None, params["root"])
            return [CompletionItem(name) for name in names(settings) if name.startswith(incomplete)]
        return []

    return complete


def runnable_cells(matrix: "Matrix") -> list[str]:
    """Return the cells that are not excluded."""
    return [cell.id for cell in matrix.cells.values() if not cell.excluded]


def _cells_and_best(settings: Settings) -> list[str]:
    # Imported here because most commands complete no `best`.
    from harness.campaign.bench.plan import BEST  # noqa: PLC0415

    return [BEST, *runnable_cells(settings.matrix)]


def _runs(settings: Settings) -> list[str]:
    """Return the ids, newest first, because that is the run that a user most likely wants to explain."""
    return [LATEST, *sorted(settings.results.finished(), reverse=True)]


complete_cells = completes(lambda settings: runnable_cells(settings.matrix))
complete_cells_and_best = completes(_cells_and_best)
complete_selections = completes(lambda settings: settings.matrix.selections)
complete_stages = completes(lambda settings: settings.matrix.stages)
complete_workloads = completes(lambda settings: settings.matrix.workloads)
complete_presets = completes(lambda settings: settings.matrix.presets)
complete_rocm = completes(lambda settings: settings.matrix.rocm_versions)
complete_runs = completes(_runs)
complete_cells_and_runs = completes(lambda settings: [*runnable_cells(settings.matrix), *_runs(settings)])
