"""`matrix`: the command line as a whole. Each command is parsed and printed by a module of its own."""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource

from harness import __version__
from harness.base.command_words import own_words
from harness.base.errors import NoSuchFileError, UserError
from harness.base.files.storage import remedy_for
from harness.base.urls import without_credentials
from harness.cli.by_make import with_make
from harness.cli.commands import Commands, with_dashes
from harness.cli.shared import (
    INTERRUPTED,
    Settings,
    UnansweredError,
    as_typed,
    begin_output,
    print_error,
    say,
    warn,
)
from harness.cli.usage import usage_line
from harness.screen.terminal import echo

# Commands that do not warn of unfinished work: some report on their own how they continue it, and nobody reads what
# Slurm's hooks print.
SAYS_NOTHING_LEFT = ("run", "train", "completion", "slurm-prolog", "slurm-epilog")
# An empty argument, or a long option with an empty value.
EMPTY = re.compile("(--[^=]*=)?")


CONTEXT = {"token_normalize_func": with_dashes, "help_option_names": ["-h", "--help"]}


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="matrix")
@click.option("--matrix", "file", type=click.Path(path_type=Path), default=Path("matrix.yaml"), show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--base", metavar="IMAGE", envvar="MATRIX_BASE", show_envvar=True, help="Base image of the stacks that name none."
)
@click.option(
    "--index",
    "indexes",
    multiple=True,
    metavar="SOURCE=URL",
    envvar="MATRIX_INDEX",
    show_envvar=True,
    help="Mirror of a source of wheels (`matrix show` lists them) or of `pypi`; https://, http:// or file://.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="GFX",
    envvar="MATRIX_TARGET",
    show_envvar=True,
    help="GPU target to install device code for, if it has its own packages (default: this host's, else gfx1100).",
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    envvar="MATRIX_WHEELS",
    show_envvar=True,
    help="Folder of wheels to use before any index.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    envvar="MATRIX_ROOT",
    show_envvar=True,
    default=Path("/"),
    help="Folder of a simulated host, as `matrix simulate` writes one: its /sys, /proc and /dev. Processes, disks, "
    "Docker and network stay those of this machine, and nothing counts for a real host.",
)
@click.pass_context
def cli(
    context: click.Context,
    file: Path,
    results: Path,
    base: str | None,
    indexes: tuple[str, ...],
    targets: tuple[str, ...],
    wheels: Path | None,
    root: Path,
) -> None:
    """Find out which ROCm x PyTorch x environment trains to completion on this machine.

    A cell is a stack (what is installed) with a preset (environment variables), e.g. rocm6.3-torch2.9.1-plain. Start
    with `matrix doctor`, then `matrix plan`, `matrix run` and `matrix status`.
    """
    if wheels:
        if not wheels.is_dir():
            raise NoSuchFileError(f"--wheels {wheels}: {'is not a folder' if wheels.exists() else 'no such folder'}")
        os.environ["UV_FIND_LINKS"] = ",".join(filter(None, [str(wheels.resolve()), os.environ.get("UV_FIND_LINKS")]))
    if lacking := [name for name in ("sys", "proc", "dev") if not (root / name).is_dir()]:
        writes = "`matrix simulate FOLDER`, without --root and MATRIX_ROOT, writes a host"
        raise UserError(f"--root {root}: has no {' and no '.join(lacking)}; {writes}")
    if targets:
        from harness.matrix.stacks import is_target  # noqa: PLC0415 - it delays each --help

        if unknown := [target for target in targets if not is_target(target)]:
            raise UserError(f"--target {unknown[0]}: is no GPU target such as gfx1100")
    mirrors = dict(_named_url(given) for given in indexes)
    context.obj = settings = Settings(file, results, base, root, mirrors, targets, tuple(_given(context)))
    if settings.simulated:
        warn([f"simulated host: {root} stands for /sys, /proc and /dev; what it shows says nothing about a real host"])
    if context.invoked_subcommand not in SAYS_NOTHING_LEFT and any(results.glob("campaigns/*.under-way")):
        # Imported here because it is needed only after something was begun.
        from harness.campaign.under_way import left_under_way  # noqa: PLC0415
        from harness.host.fingerprint import machine_of  # noqa: PLC0415

        warn([left.in_words for left in left_under_way(settings.results, machine_of(settings.root))])


def _given(context: click.Context) -> Iterator[str]:
    """Yield the global options that were given, also by environment variables, as the user would type them."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            continue
        value = context.params[option.name or ""]
        for one in value if isinstance(value, tuple) else (value,):
            # A printed or stored command must not contain a password: if an address needs one, the user types it again.
            name, equals, url = str(one).partition("=") if option.name == "indexes" else ("", "", str(one))
            yield from (option.opts[0], f"{name}{equals}{without_credentials(url)}")


def _named_url(given: str) -> tuple[str, str]:
    name, equals, url = given.partition("=")
    if not equals:
        raise UserError(
            f"--index {given}: should be SOURCE=URL, such as pytorch=https://mirror.example/whl/{{platform}}"
        )
    # Imported here because it is needed only when a mirror is given.
    from harness.matrix.stacks import check_mirrors  # noqa: PLC0415

    try:
        check_mirrors({name: url})
    except ValueError as error:
        raise UserError(f"--index {name}: {error}") from None
    return name, url


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script: print an error that the user can fix as one line, and exit with status 2."""
    words = sys.argv[1:] if arguments is None else arguments
    begin_output()
    # What is made in this checkout runs as this user. Files for all users are given to them one by one.
    os.umask(os.umask(0o077) | stat.S_IWOTH)
    try:
        own = own_words(words)[0]
        # The words after the cell of `matrix exec` belong to another program.
        own = own[: own.index("exec") + 2] if "exec" in own else own
        if any(map(EMPTY.fullmatch, own)):
            raise UserError("an argument is empty, perhaps from an unset variable; leave it out, or give it a value")
        sys.exit(cli(args=arguments, prog_name="matrix", standalone_mode=False))
    except UserError as error:
        _exit_with(error.code, f"matrix: {error}", words)
    except click.UsageError as error:
        _exit_with("usage", usage_line(error), words)
    except UnansweredError as error:
        echo(f"\nmatrix: there was no answer, so nothing was done; {error.option} answers in advance", err=True)
        sys.exit(1)
    except click.Abort as error:
        # Ctrl-C, pressed while nothing ran or at a question, exits as interrupted; any other abort means the answer was
        # no.
        if not isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            sys.exit(1)
        echo("Interrupted; the same command starts it again.", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader, such as `head`, has closed its end of the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        told = _fixable_by_user(error)
        if told is None:
            raise
        # Standard error itself may be full or closed.
        with suppress(OSError):
            _exit_with("system", f"matrix: {told}", words)
        sys.exit(2)


def _exit_with(code: str, text: str, words: Sequence[str]) -> NoReturn:
    """Print what to fix as one line, and as a JSON object if --json was given; exit with status 2."""
    text = as_typed(text)
    if "--json" in own_words(words)[0]:
        print_error(code, text.removeprefix("matrix: "))
    say(with_make(text))
    sys.exit(2)


def _fixable_by_user(error: Exception) -> str | None:
    """Return what the user can fix about an error of the engine or the system; None if the user can fix nothing."""
    # Imported here because a command that succeeds does not need it.
    from harness.host.engine_errors import ENGINE_ERRORS, explain  # noqa: PLC0415

    if isinstance(error, ENGINE_ERRORS):
        return f"the Docker engine: {explain(error)}"
    if not isinstance(error, OSError):
        return None
    # A full disk or a folder without permission, met anywhere in the program. A write to an open file has no file name.
    what = f"{error.filename}: {error.strerror}; {remedy_for(error)}"
    return what if error.filename else f"standard output, or a file: {error.strerror}; {remedy_for(error)}"
