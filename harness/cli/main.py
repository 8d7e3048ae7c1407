"""`matrix`: the command line as a whole. What each command parses and prints is in a module of its own."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from harness import __version__
from harness.base.command_words import own_words
from harness.base.errors import NoSuchFileError, UserError
from harness.base.interrupts import exit_on_interrupt
from harness.base.storage import remedy_for
from harness.base.urls import without_credentials
from harness.cli.shared import INTERRUPTED, TYPED, Settings, begin_output, print_error, usage_line, warn
from harness.screen.terminal import echo

# Where a command is, and the first sentence of its help; one without is not listed. Each is imported when it is asked
# for, help lines not: what some of them need takes seconds to import.
COMMANDS = {
    "build": ("cli.images:build", "Build the images of cells (default: a selection)."),
    "clean": (
        "cli.clean:clean",
        "Remove this checkout's environments, copies of programs, and images without a known-good tag; asks first.",
    ),
    "compare": (
        "cli.minimise:compare_command",
        "Test whether the first CELL differs from each of the others in how often its runs pass.",
    ),
    "completion": ("cli.completion:completion", "Print the completion of `matrix` for SHELL: bash, zsh or fish."),
    "demote": ("cli.promote:demote", "Take a known-good TAG away, on this host and in the registry that is given."),
    "devcontainer": (
        "cli.own_program:devcontainer",
        "Write a devcontainer.json of CELL: its image, with the GPUs of this host.",
    ),
    "doctor": (
        "cli.doctor:doctor",
        "Look at this machine before anything runs: devices, driver, PCIe, Docker, disk; say what to fix, and how.",
    ),
    "env": ("cli.own_program:env", "Print what CELL sets, for a program of your own: variables, a `docker run` line."),
    "exec": (
        "cli.run:execute",
        "Run `vpoc ...` by hand in a cell's environment: `matrix exec cpu-plain vpoc train --data merged.csv`.",
    ),
    "explain": ("cli.explain:explain", "Say why a run failed: class, cause, the lines that show it, and what helps."),
    "export": ("cli.share:export_", "Write the records into FILE (.tar.gz), for `matrix import` on another host."),
    "host-changed": (
        "cli.by_hand:host_changed",
        'Say WHAT changed about this host, such as "new PSU": from now on it is another kind of host.',
    ),
    "import": ("cli.share:import_", "Add the records in FILES, which `matrix export` made on other hosts."),
    "index": ("cli.records:index", "Rebuild records.db from the run folders, which are the truth."),
    "inject": (
        "cli.inject:inject",
        "Inject faults into real runs, and see that each is found, explained and survived.",
    ),
    "isolate": (
        "cli.isolate:isolate_command",
        "Tell whether failures of CELL are its own, its stack's, a GPU's or the host's.",
    ),
    "keys": (
        "cli.keys:keys",
        "List the keys whose signatures are trusted here; yours is made where there is none yet.",
    ),
    "lint": (
        "cli.matrix:lint",
        "Name every preset variable that does nothing, contradicts another or is the default, and where.",
    ),
    "load": (
        "cli.saved:load",
        "Load the images of CELLS (default: all) from a FOLDER that `matrix save` wrote.",
    ),
    "lock": (
        "cli.images:lock",
        "Resolve what a stack consists of: wheel hashes and the digest of its base image, into images/locks.",
    ),
    "minimise": (
        "cli.minimise:minimise_command",
        "Find out which variables matter, or how little of a failed run still fails.",
    ),
    "plan": ("cli.run:plan", "Print what `matrix run` would do here: cells, runs, disk, time."),
    "promote": (
        "cli.promote:promote",
        "Move the tags known-good-SCOPE to the images that qualify for them (of CELL alone, where it is given).",
    ),
    "pull": (
        "cli.images:pull",
        "Pull a cell's image from a registry, so that `matrix run` uses it instead of building one.",
    ),
    "push": ("cli.images:push", "Push a cell's image to a registry, with the credentials of `docker login`."),
    "rehearse": (
        "cli.rehearse:rehearse",
        "Carry ROCm stacks from lock to record with nothing downloaded, and say what a real host will do at each step.",
    ),
    "render": ("cli.images:render", "Print the Dockerfile of a cell."),
    "report": (
        "cli.records:report",
        "Write the report into the results folder: report.html, .md, .json, and .xml (JUnit).",
    ),
    "report-bug": (
        "cli.report_bug:report_bug",
        "Write a failed RUN down as an issue for ROCm or PyTorch, with nothing private in it; it sends nothing.",
    ),
    "run": (
        "cli.run:run",
        "Run cells (default: a selection) one after the other; continue where an interrupted campaign stopped.",
    ),
    "run-cell": ("cli.run:run_cell_command", "Run one cell once, watch it, and leave its record."),
    "slurm-epilog": (
        "cli.clusters:slurm_epilog",
        "As Slurm's Epilog, end what a job left of its runs, containers too; fail where something cannot be killed.",
    ),
    "slurm-node": ("cli.clusters:slurm_node", ""),
    "slurm-prolog": (
        "cli.clusters:slurm_prolog",
        "Print how to install the hooks of Slurm; as Slurm's Prolog, fail where a GPU of this node is unhealthy.",
    ),
    "save": (
        "cli.saved:save",
        "Save the images of CELLS to FOLDER, such as one on a stick, for a host without a registry.",
    ),
    "show": (
        "cli.matrix:show",
        "Print what the matrix file resolves to: selections, stacks, presets and workloads.",
    ),
    "simulate": (
        "cli.simulate:simulate",
        "Write a simulated host (two RX 7900 XT) into FOLDER, for `matrix --root FOLDER ...`.",
    ),
    "status": (
        "cli.status:status",
        "Say what the records show: a verdict for every cell that was run, or every run of one CELL.",
    ),
    "strike": (
        "cli.by_hand:strike_command",
        "Strike out RUN by hand: it counts no more, and its reason is shown on verdict, tag and report.",
    ),
    "tags": ("cli.promote:tags", "List the known-good tags that stand, and whether this host may use them."),
    "train": ("cli.train:train_command", "Train on your data, to the end: through crashes, hangs and out of memory."),
    "verify": (
        "cli.verify:verify",
        "Build an image again from what its labels name, and say whether it is the same, or which files differ.",
    ),
    "watch": (
        "cli.watch:watch",
        "Show what runs with this results folder, started by whichever process of this host, until it ends.",
    ),
}

# Commands under their former names, not listed.
RENAMED = {"drill": "inject"}
# Of these, those that go on with it say so themselves, and Slurm's hooks have no reader.
SAYS_NOTHING_LEFT = ("run", "train", "watch", "completion", "slurm-prolog", "slurm-epilog")


def _with_dashes(word: str) -> str:
    return word.replace("_", "-")


CONTEXT = {"token_normalize_func": _with_dashes, "help_option_names": ["-h", "--help"]}


class Commands(click.Group):
    """The commands of COMMANDS."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of those that are listed."""
        return [name for name, (_, help_line) in COMMANDS.items() if help_line]

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import the command of that name; None where there is none."""
        name = RENAMED.get(name, name)
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        with exit_on_interrupt():
            command: click.Command = getattr(import_module(f"harness.{module}"), attribute)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant.

        Raises:
            click.UsageError: where there is none of that name, with the nearest that is listed.
        """
        name = _with_dashes(arguments[0])
        if RENAMED.get(name, name) not in COMMANDS and name[:1] != "-" and not context.resilient_parsing:
            near = get_close_matches(name, self.list_commands(context), n=1)
            hint = f" (did you mean `matrix {near[0]}`?)" if near else ""
            raise click.UsageError(f"No such command {arguments[0]!r}{hint}", context)
        context.meta[TYPED] = tuple(arguments)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands as click does, by COMMANDS alone."""
        names = self.list_commands(context)
        limit = formatter.width - 6 - max(map(len, names))
        rows = [(name, click.Command(name, help=COMMANDS[name][1]).get_short_help_str(limit)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, or else options, that begin with what was typed."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=COMMANDS[name][1]) for name in names),
            *click.Command.shell_complete(self, context, incomplete),
        ]


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="matrix")
@click.option("--matrix", "file", type=click.Path(path_type=Path), default=Path("matrix.yaml"), show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--base", metavar="IMAGE", envvar="MATRIX_BASE", show_envvar=True, help="Base image of every stack that names none."
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
    help="GPU to install device code for, where that is packages of its own (default: this host's, else gfx1100).",
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

    A cell is a stack (what is installed) with a preset (environment variables), e.g. rocm6.3-torch2.9.1-plain.
    Start with `matrix doctor`, then `matrix plan`, `matrix run` and `matrix status`.
    """
    if wheels:
        if not wheels.is_dir():
            raise NoSuchFileError(f"--wheels {wheels}: no such folder")
        os.environ["UV_FIND_LINKS"] = ",".join(filter(None, [str(wheels.resolve()), os.environ.get("UV_FIND_LINKS")]))
    if lacking := [name for name in ("sys", "proc", "dev") if not (root / name).is_dir()]:
        raise UserError(f"--root {root}: has no {' and no '.join(lacking)}; `matrix simulate FOLDER` writes a host")
    mirrors = dict(_named_url(given) for given in indexes)
    context.obj = settings = Settings(file, results, base, root, mirrors, targets, tuple(_given(context)))
    if settings.simulated:
        warn([f"simulated host: {root} stands for /sys, /proc and /dev; what is seen says nothing of a real host"])
    if context.invoked_subcommand not in SAYS_NOTHING_LEFT and any(results.glob("campaigns/*.under-way")):
        # Only where something was begun.
        from harness.campaign.under_way import left_under_way  # noqa: PLC0415
        from harness.host.fingerprint import machine_of  # noqa: PLC0415

        warn([left.in_words for left in left_under_way(settings.results, machine_of(settings.root))])


def _given(context: click.Context) -> Iterator[str]:
    """Yield the global options that were given, also by a variable, as they would be typed."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            continue
        value = context.params[option.name or ""]
        for one in value if isinstance(value, tuple) else (value,):
            # A password is in no file: where an address needs one, it is typed again.
            name, equals, url = str(one).partition("=") if option.name == "indexes" else ("", "", str(one))
            yield from (option.opts[0], f"{name}{equals}{without_credentials(url)}")


def _named_url(given: str) -> tuple[str, str]:
    name, equals, url = given.partition("=")
    if not equals:
        raise UserError(
            f"--index {given}: should be SOURCE=URL, such as pytorch=https://mirror.example/whl/{{platform}}"
        )
    # Only where one is given.
    from harness.matrix.stacks import known_mirrors  # noqa: PLC0415

    try:
        known_mirrors({name: url})
    except ValueError as error:
        raise UserError(f"--index {name}: {error}") from None
    return name, url


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: what a user can fix is one line and exit status 2."""
    words = sys.argv[1:] if arguments is None else arguments
    begin_output()
    try:
        sys.exit(cli(args=arguments, prog_name="matrix", standalone_mode=False))
    except UserError as error:
        _exit_with(error.code, f"matrix: {error}", words)
    except click.UsageError as error:
        _exit_with("usage", usage_line(error), words)
    except click.Abort as error:
        # Ctrl-C where nothing was running, or at a question; else the answer was no.
        sys.exit(INTERRUPTED if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt) else 1)
    except BrokenPipeError:
        # The reader (such as `head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        told = _fixable_by_user(error)
        if told is None:
            raise
        # Standard error may be what is full or closed.
        with suppress(OSError):
            _exit_with("system", f"matrix: {told}", words)
        sys.exit(2)


def _exit_with(code: str, text: str, words: Sequence[str]) -> NoReturn:
    """Say what to fix in a line, as an object too where JSON was asked for, and exit with status 2."""
    if "--json" in own_words(words)[0]:
        print_error(code, text.removeprefix("matrix: "))
    echo(text, err=True)
    sys.exit(2)


def _fixable_by_user(error: Exception) -> str | None:
    """Return what the user can fix of an error of the engine or the system; None where that is nothing."""
    # Where nothing went wrong, nobody waits for this.
    from harness.host.engine import ENGINE_ERRORS, explain  # noqa: PLC0415

    if isinstance(error, ENGINE_ERRORS):
        return f"the Docker engine: {explain(error)}"
    if not isinstance(error, OSError):
        return None
    # A full disk or a folder without permission, wherever it was met; a terminal that was closed has no name.
    what = f"{error.filename}: {error.strerror}; {remedy_for(error)}"
    return what if error.filename else f"standard output: {error.strerror}"
