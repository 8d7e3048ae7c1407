"""`matrix`: the command line as a whole. What each command parses and prints is in a module of its own."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click

from harness import __version__
from harness.base.errors import UserError
from harness.cli.shared import INTERRUPTED, Settings, usage_line, warn

# Each is imported when it is asked for: what some of them need takes seconds to import.
COMMANDS = {
    "build": "cli.images:build",
    "compare": "cli.minimise:compare_command",
    "demote": "cli.promote:demote",
    "doctor": "cli.doctor:doctor",
    "inject": "cli.inject:inject",
    "exec": "cli.run:execute",
    "explain": "cli.explain:explain",
    "export": "cli.share:export_",
    "import": "cli.share:import_",
    "index": "cli.records:index",
    "lint": "cli.matrix:lint",
    "lock": "cli.images:lock",
    "minimise": "cli.minimise:minimise",
    "plan": "cli.run:plan",
    "promote": "cli.promote:promote",
    "pull": "cli.images:pull",
    "push": "cli.images:push",
    "render": "cli.images:render",
    "report": "cli.records:report",
    "run": "cli.run:run",
    "run-cell": "cli.run:run_cell",
    "show": "cli.matrix:show",
    "simulate": "cli.simulate:simulate",
    "status": "cli.status:status",
    "tags": "cli.promote:tags",
    "train": "cli.train:train",
    "watch": "cli.watch:watch",
}

# Commands under their former names, not listed.
RENAMED = {"drill": "inject"}

CONTEXT = {"token_normalize_func": lambda word: word.replace("_", "-"), "help_option_names": ["-h", "--help"]}


class Commands(click.Group):
    """The commands of COMMANDS."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        name = RENAMED.get(name, name)
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        command: click.Command = getattr(import_module(f"harness.{module}"), attribute)
        return command


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="matrix")
@click.option("--matrix", "file", type=click.Path(path_type=Path), default=Path("matrix.yaml"), show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--base", metavar="IMAGE", envvar="MATRIX_BASE", show_envvar=True, help="Base image of every stack that names none."
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    envvar="MATRIX_WHEELS",
    show_envvar=True,
    help="Folder of wheels to take first.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="MATRIX_ROOT",
    show_envvar=True,
    default=Path("/"),
    help="Folder of a simulated host, as `matrix simulate` writes one: its /sys, /proc and /dev. Processes, disks, "
    "Docker and network stay those of this machine, and nothing counts for a real host.",
)
@click.pass_context
def cli(context: click.Context, file: Path, results: Path, base: str | None, wheels: Path | None, root: Path) -> None:
    """Find out which ROCm x PyTorch x environment trains to completion on this machine.

    A cell is a stack (what is installed) with a preset (environment variables), e.g. rocm6.3-torch2.9.1-plain.
    Start with `matrix doctor`, then `matrix plan`, `matrix run` and `matrix status`.
    """
    if wheels:
        if not wheels.is_dir():
            raise UserError(f"--wheels {wheels}: no such folder")
        os.environ["UV_FIND_LINKS"] = ",".join(filter(None, [str(wheels.resolve()), os.environ.get("UV_FIND_LINKS")]))
    context.obj = settings = Settings(file, results, base, root)
    if settings.simulated:
        warn([f"simulated host: {root} stands for /sys, /proc and /dev; what is seen says nothing of a real host"])


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: what a user can fix is one line and exit status 2."""
    try:
        sys.exit(cli(args=arguments, prog_name="matrix", standalone_mode=False))
    except UserError as error:
        click.echo(f"matrix: {error}", err=True)
        sys.exit(2)
    except click.UsageError as error:
        click.echo(usage_line(error), err=True)
        sys.exit(2)
    except click.Abort as error:
        # Ctrl-C where nothing was running, or at a question; else the answer was no.
        sys.exit(INTERRUPTED if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt) else 1)
    except BrokenPipeError:
        # The reader (such as `head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        told = _to_mend(error)
        if told is None:
            raise
        # Standard error may be what is full or closed.
        with suppress(OSError):
            click.echo(f"matrix: {told}", err=True)
        sys.exit(2)


def _to_mend(error: Exception) -> str | None:
    """What the user can fix of an error of the engine or the system; None where that is nothing."""
    # Where nothing went wrong, nobody waits for this.
    from harness.host.engine import ENGINE_ERRORS, explain  # noqa: PLC0415

    if isinstance(error, ENGINE_ERRORS):
        return f"the Docker engine: {explain(error)}"
    if not isinstance(error, OSError):
        return None
    # A full disk or a folder without permission, wherever it was met; a terminal that was closed has no name.
    what = f"{error.filename}: {error.strerror}; free space or choose another folder"
    return what if error.filename else f"standard output: {error.strerror}"
