"""The parts that all commands share: the global options, printing, questions."""

import json
import re
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
from harness.base.command_words import PROGRAM, YES, with_option
from harness.base.errors import NoSuchFileError, UnknownNameError, UserError
from harness.screen.terminal import SafeConsole, echo

if TYPE_CHECKING:
    from harness.evidence.records import Results
    from harness.matrix.cells import Matrix
    from harness.report.invocation import Invocation

INTERRUPTED = interrupts.INTERRUPTED
LARGE_DOWNLOAD_GB = 20
# The key of the typed words in the meta values of the context of click.
TYPED = "harness.typed"
# The version of the keys of what --json prints.
SCHEMA = 2

# Piped tables are for grep: no line of them is broken. Python has no standard output where it is closed.
PIPED_WIDTH = 500
out = SafeConsole(highlight=False, width=None if sys.stdout and sys.stdout.isatty() else PIPED_WIDTH)
err = SafeConsole(highlight=False, stderr=True)


class Settings:
    """The global options; what they name is read, and what reads it imported, when it is first needed.

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
        """The results folder, for a command that only reads it; what writes to it makes it.

        Raises:
            NoSuchFileError: when the folder that was given is not there.
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
        return load_matrix(self.file, given=Given(self.base, self.mirrors, targets))

    @cached_property
    def invocation(self) -> "Invocation":
        """How `matrix` was typed: the program, and the global options."""
        return typed_as(self.given)

    @property
    def simulated(self) -> bool:
        """Return whether the host is a simulated one."""
        from harness.base.sysfs import is_simulated  # noqa: PLC0415

        return is_simulated(self.root)


class FiniteRange(click.FloatRange):
    """A number in a range; `nan`, which every range of click has in it, and `inf` are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


pass_settings = click.make_pass_decorator(Settings)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def typed_as(options: tuple[str, ...] = ()) -> "Invocation":
    """Return how `matrix` was typed, with these global options."""
    from harness.report.invocation import Invocation  # noqa: PLC0415

    return Invocation(_program(), options)


def _program() -> str:
    program = Path(sys.argv[0])
    known = Path(PROGRAM)
    if program.name != known.name or (known.exists() and program.resolve() == known.resolve()):
        return PROGRAM
    on_path = shutil.which(program.name)
    same = on_path is not None and Path(on_path).resolve() == program.resolve()
    return program.name if same else str(program)


def as_typed(text: str, written: str = "(?<=`)matrix") -> str:
    """Return a text in whose commands `matrix` is typed as it was, with the global options.

    It is there as the pattern `written` says: in backquotes.
    """
    context = click.get_current_context(silent=True)
    settings = context.find_object(Settings) if context else None
    # Without options, as at every start, nothing more is imported.
    program = settings.invocation.command() if settings and settings.given else shlex.quote(_program())
    return re.sub(rf"{written}(?=\s)", lambda _: program, text)


def executor_option(text: str) -> Callable[[Any], Any]:
    """Return the option that chooses between containers and processes, with its help."""
    choice = click.Choice(["docker", "process"])
    return click.option("--executor", type=choice, envvar="MATRIX_EXECUTOR", show_envvar=True, help=text)


def typed_words() -> tuple[str, ...]:
    """Return the command that is running, as it was typed: its name, its arguments and options.

    Options that a variable gave are among them: whoever types it after a reboot has another shell.
    """
    context = click.get_current_context()
    words: tuple[str, ...] = context.meta.get(TYPED, (str(context.info_name),))
    for option in context.command.params:
        if context.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
            words = with_option(words, option.opts[0], str(context.params[option.name or ""]))
    return words


class UnansweredError(click.Abort):
    """Nobody answered a question; `option` does beforehand."""

    def __init__(self, option: str) -> None:
        super().__init__()
        self.option = option


def asked(question: str, option: str = YES) -> bool:
    """Return what a person answers; `option` answers beforehand.

    Raises:
        UnansweredError: where the input has ended.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise UnansweredError(option) from None
        raise


def confirm(download_gb: float, *, yes: bool) -> None:
    """Ask before a large download; leaves with exit status 1 where the answer is no."""
    if download_gb > LARGE_DOWNLOAD_GB and not yes and not asked(f"Download about {download_gb:.0f} GB?"):
        raise click.Abort


def known(name: str, choices: Any, kind: str) -> str:
    """A name that is among the choices.

    Raises:
        UserError: naming the nearest choice.
    """
    if name not in choices:
        from harness.matrix.load import nearest  # noqa: PLC0415

        # What must not be used is no suggestion.
        usable = [
            one for one in choices if not (isinstance(choices, Mapping) and getattr(choices[one], "excluded", None))
        ]
        raise UnknownNameError(f"unknown {kind} {name!r}; {nearest(name, usable)}")
    return name


def worded(name: str, text: str) -> str:
    """Return a text without needless spaces; `name` is what a person gives it by.

    Raises:
        UserError: when there is nothing else in it.
    """
    words = " ".join(text.split())
    if not words:
        raise UserError(f"{name} is empty; say it in words, which are shown wherever it matters")
    return words


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object as strict JSON, with the version of its keys.

    Output about a simulated host says so: `"simulated": true` beside the other keys.
    """
    context = click.get_current_context(silent=True)
    settings = context.find_object(Settings) if context else None
    about = {"simulated": True} if settings and settings.simulated else {}
    _Printed.json = True
    echo(json.dumps({"schema": SCHEMA, **value, **about}, indent=2, allow_nan=False))


def begin_output() -> None:
    """Begin the output of a command: no object of it was printed yet."""
    _Printed.json = False


def print_error(code: str, text: str) -> None:
    """Print an error as JSON. Nothing after other JSON."""
    if _Printed.json:
        return
    echo(json.dumps({"schema": SCHEMA, "error": error_object(code, text)}, indent=2, allow_nan=False))


def error_object(code: str, text: str) -> dict[str, str | None]:
    """Return an error as plain values: what is wrong, and after the last semicolon what to do."""
    message, semicolon, remedy = text.rpartition("; ")
    return {"code": code, "message": message if semicolon else text, "remedy": remedy if semicolon else None}


class _Printed:
    """One per process: whether an object was printed, after which there must be no other."""

    json = False


def print_lines(lines: list[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        echo(line)


def warn(texts: list[str]) -> None:
    """Tell what does not keep the command from its work."""
    for text in texts:
        echo(f"matrix: {as_typed(text)}", err=True)
