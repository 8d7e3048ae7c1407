"""The parts that all commands share: global options, printing, questions."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness.base import interrupts
from harness.base.command_words import PROGRAM, QUOTED, YES, with_option, with_typed_commands
from harness.base.errors import NoSuchFileError, UnknownNameError, UserError
from harness.screen.fitted import as_question, folded
from harness.screen.terminal import SafeConsole, echo

if TYPE_CHECKING:
    from harness.evidence.records import Results
    from harness.matrix.cells import Cell, Matrix
    from harness.report.invocation import Invocation

INTERRUPTED = interrupts.INTERRUPTED
LARGE_DOWNLOAD_GB = 20
# Key of the typed words in click's `Context.meta`.
TYPED = "harness.typed"
# Version of the keys in the output of --json.
SCHEMA = 2

# Width of piped tables, in columns: they are for grep, so no line may wrap. sys.stdout is None where it is closed.
PIPED_WIDTH = 500
out = SafeConsole(highlight=False, width=None if sys.stdout and sys.stdout.isatty() else PIPED_WIDTH)
err = SafeConsole(highlight=False, stderr=True)


class Settings:
    """The global options. The files that they name are read, and the modules that read them imported, on first use.

    `root` holds /sys, /proc and /dev of the host: `/`, or the folder of a simulated host.
    """

    def __init__(
        self,
        file: Path,
        results: Path,
        base: str | None,
        root: Path = Path("/"),
        mirrors: Mapping[str, str] | None = None,
        targets: tuple[str, ...] = (),
        given: tuple[str, ...] = (),
    ) -> None:
        self.file = file
        self.base = base
        self.mirrors = mirrors or {}
        self.targets = targets
        self.root = root.resolve()
        self._results = results.resolve()
        self.given = given

    def with_results(self, results: Path) -> "Settings":
        """Return the settings with another results folder, unless one was given."""
        if "--results" in self.given:
            return self
        given = (*self.given, "--results", str(results))
        return Settings(self.file, results, self.base, self.root, self.mirrors, self.targets, given)

    @cached_property
    def results(self) -> "Results":
        """The results folder."""
        from harness.evidence.records import Results  # noqa: PLC0415

        return Results(self._results)

    @property
    def results_to_read(self) -> "Results":
        """The results folder, for a command that only reads it; a command that writes creates the folder.

        Raises:
            NoSuchFileError: when the given folder does not exist.
        """
        if "--results" in self.given and not self._results.is_dir():
            why = "is not a folder" if self._results.exists() else "no such folder"
            raise NoSuchFileError(f"--results {self._results}: {why}; name the one that runs are in, or leave it out")
        return self.results

    @cached_property
    def matrix(self) -> "Matrix":
        """The matrix file's content."""
        from harness.host.fingerprint import wheel_targets  # noqa: PLC0415
        from harness.matrix.load import DEFAULT_TARGETS, Given, load_matrix  # noqa: PLC0415

        targets = self.targets or wheel_targets(self.root) or DEFAULT_TARGETS
        return load_matrix(self.file, Given(self.base, self.mirrors, targets))

    def cell(self, name: str) -> "Cell":
        """Return a cell of the matrix file.

        Raises:
            UserError: when there is none of that name; names the nearest one.
        """
        return self.matrix.cells[known(name, self.matrix.cells, "cell")]

    @cached_property
    def invocation(self) -> "Invocation":
        """How `matrix` was typed: the program, and the global options."""
        from harness.report.invocation import Invocation  # noqa: PLC0415

        return Invocation(_program(), self.given)

    @property
    def simulated(self) -> bool:
        """Return whether the host is a simulated one."""
        from harness.base.sysfs import is_simulated  # noqa: PLC0415

        return is_simulated(self.root)


class FiniteRange(click.FloatRange):
    """A finite number in a range; click's own ranges accept `nan`, and open ones `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


pass_settings = click.make_pass_decorator(Settings)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _program() -> str:
    program = Path(sys.argv[0])
    known = Path(PROGRAM)
    if program.name != known.name or (known.exists() and program.resolve() == known.resolve()):
        return PROGRAM
    on_path = shutil.which(program.name)
    same = on_path is not None and Path(on_path).resolve() == program.resolve()
    return program.name if same else str(program)


def as_typed(text: str, written: str = QUOTED) -> str:
    """Return a text in whose commands `matrix` is replaced by what the user typed, with the global options.

    `written`: as in `with_typed_commands`.
    """
    context = click.get_current_context(silent=True)
    settings = context.find_object(Settings) if context else None
    # Without global options, as at every start, nothing more needs to be imported.
    program = shlex.quote(_program())
    typed = settings.invocation.command() if settings and settings.given else program
    return with_typed_commands(text, program, typed, written)


def executor_option(text: str) -> Callable[[Any], Any]:
    """Return the option that chooses between containers and processes, with this help text."""
    choice = click.Choice(["docker", "process"])
    return click.option("--executor", type=choice, envvar="MATRIX_EXECUTOR", show_envvar=True, help=text)


def data_option(text: str) -> Callable[[Any], Any]:
    """Return the option that names the data; several are a usage error, where click would take the last."""

    def only(context: click.Context, _option: click.Parameter, given: tuple[Path, ...]) -> Path | None:
        if len(given) > 1:
            raise click.UsageError(f"--data takes one path, {len(given)} are given (joining: docs/data.md)", context)
        return given[0] if given else None

    return click.option("--data", type=click.Path(path_type=Path), multiple=True, callback=only, help=text)


def typed_words() -> tuple[str, ...]:
    """Return the running command as it was typed: its name, its arguments and options.

    Options that an environment variable gave are included, because the command may be typed again in another shell.
    """
    context = click.get_current_context()
    words: tuple[str, ...] = context.meta.get(TYPED, (str(context.info_name),))
    for option in context.command.params:
        if context.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
            words = with_option(words, option.opts[0], str(context.params[option.name or ""]))
    return words


class UnansweredError(click.Abort):
    """Nobody could answer a question, because the input had ended; `option` answers it in advance."""

    def __init__(self, option: str) -> None:
        super().__init__()
        self.option = option


def ask_user(question: str, option: str = YES) -> bool:
    """Ask a question and return the user's answer; `option` is the option that answers it in advance.

    Raises:
        UnansweredError: when the input has ended.
    """
    try:
        return click.confirm(as_question(err, question), err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UnansweredError(option) from None
        raise


def confirm(download_gb: float, *, yes: bool) -> None:
    """Ask before a large download; exit with status 1 if the answer is no."""
    if download_gb > LARGE_DOWNLOAD_GB and not yes and not ask_user(f"Download about {download_gb:.0f} GB?"):
        raise click.Abort


def known(name: str, choices: Any, kind: str) -> str:
    """Return the name if it is among the choices.

    Raises:
        UserError: when it is not; names the nearest choice.
    """
    if name not in choices:
        from harness.matrix.load import nearest  # noqa: PLC0415

        # Suggest no excluded cell.
        usable = [
            one for one in choices if not (isinstance(choices, Mapping) and getattr(choices[one], "excluded", None))
        ]
        of_tag = "that is a tag: `matrix tags` says which cell it is, with --registry of one in a registry"
        hint = of_tag if kind.startswith("cell") and name.startswith("known-good") else nearest(name, usable)
        raise UnknownNameError(f"unknown {kind} {name!r}; {hint}")
    return name


def worded(name: str, text: str) -> str:
    """Return a text without superfluous spaces; `name` is the option or argument that gave it.

    Raises:
        UserError: when the text is empty.
    """
    words = " ".join(text.split())
    if not words:
        raise UserError(f"{name} is empty; give a text, which is shown wherever it matters")
    return words


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object as strict JSON, with the version of its keys.

    Output about a simulated host has `"simulated": true` beside the other keys.
    """
    context = click.get_current_context(silent=True)
    settings = context.find_object(Settings) if context else None
    about = {"simulated": True} if settings and settings.simulated else {}
    _Printed.json = True
    echo(json.dumps({"schema": SCHEMA, **value, **about}, indent=2, allow_nan=False))


def begin_output() -> None:
    """Reset the output state at the start of a command: no JSON object is printed yet."""
    _Printed.json = False


def print_error(code: str, text: str) -> None:
    """Print an error as JSON, unless a JSON object was already printed."""
    if _Printed.json:
        return
    echo(json.dumps({"schema": SCHEMA, "error": error_object(code, text)}, indent=2, allow_nan=False))


def error_object(code: str, text: str) -> dict[str, str | None]:
    """Return an error as plain values: the message, and the remedy after the last semicolon."""
    message, semicolon, remedy = text.rpartition("; ")
    return {"code": code, "message": message if semicolon else text, "remedy": remedy if semicolon else None}


class _Printed:
    """The state of the process's output: whether a JSON object was printed, after which none may follow."""

    json = False


def print_lines(lines: list[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        echo(line)


def warn(texts: list[str]) -> None:
    """Print problems that do not stop the command."""
    for text in texts:
        say(f"matrix: {as_typed(text)}")


def say(text: str) -> None:
    """Print a line to standard error, on a terminal folded at words."""
    echo("\n".join(folded(line, err.width) for line in text.split("\n")) if err.is_terminal else text, err=True)
