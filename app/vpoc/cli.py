"""The command line: parses options, calls commands, and prints an error that the user can fix as one line.

Importing this module imports neither torch nor polars; the commands import them when they run.
"""

import atexit
import faulthandler
import json
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from vpoc import __version__
from vpoc.errors import Interrupted, UserError, printable
from vpoc.kernel import profile_kernel

COMMANDS = {
    "synth": "vpoc.commands.data",
    "merge": "vpoc.commands.data",
    "check": "vpoc.commands.data",
    "features": "vpoc.commands.features",
    "plot": "vpoc.commands.plot",
    "train": "vpoc.commands.train",
    "verify": "vpoc.commands.train",
    "check-model": "vpoc.commands.model",
    "predict": "vpoc.commands.model",
    "evaluate": "vpoc.commands.evaluate",
    "probe": "vpoc.commands.probe",
}
"""The module of each command, in the order of the help."""


class Commands(click.Group):
    """The group of commands, each of which is imported from its module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order in which a user needs them, not in alphabetical order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command `cmd_name`."""
        name = cmd_name.replace("_", "-")
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[name]), f"{name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed; click's usage error, with the nearest one, if there is none."""
        name = args[0].replace("_", "-")
        if name not in COMMANDS and name[:1] != "-" and not ctx.resilient_parsing:
            near = get_close_matches(name, COMMANDS, n=1)
            hint = f" (did you mean `vpoc {near[0]}`?)" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


EMPTY = re.compile("(--[^=]*=)?")
"""An empty argument, or a long option with an empty value."""
OLD_NAMES = {"warm-up": "lookback", "drill": "inject-fault", "rung": "check"}
"""Former names of options, still accepted but not shown."""


def _present_name(name: str) -> str:
    """Return the present name of an option or a command, with hyphens."""
    name = name.replace("_", "-")
    return OLD_NAMES.get(name, name)


CONTEXT: dict[str, Any] = {
    "token_normalize_func": _present_name,
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "max_content_width": 100,
}


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"vpoc {__version__} ({profile_kernel()})")
        ctx.exit()


@click.group(cls=Commands, context_settings=CONTEXT)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether profiles are computed by the compiled kernel.",
)
def cli() -> None:
    """Volume-profile (VPOC) features of E-mini S&P 500 bars, and a network trained on them.

    \b
    A first run, with synthetic data:
      vpoc synth --output merged.csv --sessions 120
      vpoc check merged.csv
      vpoc train --data merged.csv --output TRAINING --epochs 1

    Options may be written with hyphens or underscores: --batch-size and --batch_size are the same.
    """  # noqa: D301 - click needs the character itself


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if any(map(EMPTY.fullmatch, words)):
            raise UserError("an argument is empty, perhaps from an unset variable; leave it out, or give it a value")
        code = cli.main(args=arguments, prog_name="vpoc", standalone_mode=False)
    except UserError as error:
        _print_error("user-error", printable(error), words)
        return error.exit_code
    except Interrupted as interruption:
        click.echo(f"vpoc: interrupted by {interruption}", err=True)
        return 128 + interruption.signum
    except (click.Abort, KeyboardInterrupt):
        click.echo("vpoc: interrupted", err=True)
        return 130
    except click.ClickException as error:
        if words:
            _print_error("usage", printable(_usage_line(error)), words)
        else:
            error.show()
        return error.exit_code
    return code if isinstance(code, int) else 0


def _usage_line(error: click.ClickException) -> str:
    """Return what is wrong with a command line, and which command shows how to type it."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    said = error.format_message().rstrip(".")
    for kind, plain in (("integer", "whole number"), ("float", "number")):
        said = re.sub(rf" is not a valid {kind}( range)?$", f" is not a {plain}", said)
    if isinstance(error, click.NoSuchOption):
        # Compare without the dashes, which make short names look alike.
        near = get_close_matches(error.option_name.lstrip("-"), [one.lstrip("-") for one in error.possibilities or ()])
        hint = f" (did you mean --{near[0]}?)" if near else ""
        params = context.command.params if context else ()
        without = [str(one.human_readable_name) for one in params if isinstance(one, click.Argument)]
        said = f"No such option {error.option_name!r}{hint}{''.join(f'; {name} goes without one' for name in without)}"
    return f"{said}; see `{context.command_path if context else 'vpoc'} --help`"


def _print_error(code: str, text: str, words: Sequence[str]) -> None:
    """Print an error as one line, and with --json also as an object whose remedy is what follows the last semicolon."""
    if "--json" in words:
        message, semicolon, remedy = text.rpartition("; ")
        told = {"code": code, "message": message or text, "remedy": remedy if semicolon else None}
        click.echo(json.dumps({"schema": 2, "error": told}, indent=2))
    click.echo(f"vpoc: {text}", err=True)


def main() -> None:
    """Run the console script `vpoc`."""
    faulthandler.enable()
    status = run()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized() and "WORLD_SIZE" not in os.environ:
        # Exit as usual: if the GPU's libraries hang at exit, a program of the user's own would hang, too.
        sys.exit(status)
    # Exit directly: tearing down the interpreter and the libraries takes longer than some commands, and after an error
    # in a rank, threads of torch's process group can abort it while C++ objects are destroyed.
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        if "WORLD_SIZE" not in os.environ:
            # Python reports the error, and exits with its own status for it.
            sys.exit(status)
    os._exit(status)
