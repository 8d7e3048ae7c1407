"""What all commands share: the global options, how things are printed, what is asked."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from harness.base.errors import UserError
from harness.evidence.records import Results
from harness.host.fingerprint import REAL_ROOT, is_simulated
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix, nearest

INTERRUPTED = 130
LARGE_DOWNLOAD_GB = 20

# Piped tables are for grep: no line of them is broken.
PIPED_WIDTH = 500
out = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(highlight=False, stderr=True)


class Settings:
    """The global options; the matrix file is read when it is first needed.

    `root` holds /sys, /proc and /dev of the host: `/`, or the folder of a simulated host.
    """

    def __init__(self, file: Path, results: Path, base: str | None, root: Path = REAL_ROOT) -> None:
        self.file = file
        self.base = base
        self.root = root.resolve()
        self.results = Results(results.resolve())
        self._matrix: Matrix | None = None

    @property
    def matrix(self) -> Matrix:
        """The matrix file's content."""
        if self._matrix is None:
            self._matrix = load_matrix(self.file, self.base)
        return self._matrix

    @property
    def simulated(self) -> bool:
        """Return whether the host is a simulated one."""
        return is_simulated(self.root)


pass_settings = click.make_pass_decorator(Settings)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def confirm(download_gb: float, *, yes: bool) -> None:
    """Ask before a large download; leaves with exit status 1 where the answer is no."""
    if download_gb > LARGE_DOWNLOAD_GB and not yes:
        click.confirm(f"Download about {download_gb:.0f} GB?", abort=True, err=True)


def known(name: str, choices: Any, kind: str) -> str:
    """A name that is among the choices.

    Raises:
        UserError: naming the nearest choice.
    """
    if name not in choices:
        # What must not be used is no suggestion.
        usable = [
            one for one in choices if not (isinstance(choices, Mapping) and getattr(choices[one], "excluded", None))
        ]
        raise UserError(f"unknown {kind} {name!r}; {nearest(name, usable)}")
    return name


def usage_line(error: click.UsageError) -> str:
    """Return what is wrong with a command line, and where to read how it is typed."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    command = error.ctx.command_path if error.ctx else "matrix"
    if isinstance(error, click.NoSuchOption) and error.ctx:
        name = error.option_name
        if any(name in option.opts for option in error.ctx.find_root().command.params):
            return f"matrix: {name} goes before the command: `matrix {name} ... {error.ctx.info_name}`"
    return f"matrix: {error.format_message().rstrip('.')}; see `{command} --help`"


def print_json(value: Any) -> None:
    """Print strict JSON. What is told of a simulated host says so: `"simulated": true` beside the other keys."""
    context = click.get_current_context(silent=True)
    settings = context.find_object(Settings) if context else None
    if settings and settings.simulated and isinstance(value, dict):
        value = {**value, "simulated": True}
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def print_lines(lines: list[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        click.echo(line)


def warn(texts: list[str]) -> None:
    """Tell what does not keep the command from its work."""
    for text in texts:
        click.echo(f"matrix: {text}", err=True)
