"""The commands by section, and the module that defines each; a module is imported only when its command is used."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from harness.base.errors import UserError
from harness.base.interrupts import exit_on_interrupt
from harness.cli.shared import TYPED, as_typed, err
from harness.screen.terminal import echo

# Each command, as the module and the function that define it.
SECTIONS = {
    "From the machine to a model": {
        "doctor": "doctor:doctor",
        "plan": "run:plan",
        "run": "run:run",
        "watch": "watch:watch",
        "status": "status:status",
        "report": "records:report",
        "train": "train:train_command",
    },
    "Why something failed": {
        "explain": "explain:explain",
        "isolate": "isolate:isolate_command",
        "minimise": "minimise:minimise_command",
        "compare": "minimise:compare_command",
        "report-bug": "report_bug:report_bug",
        "inject": "inject:inject",
    },
    "Images and tags": {
        "build": "images:build",
        "verify": "verify:verify",
        "tags": "promote:tags",
        "promote": "promote:promote",
        "demote": "promote:demote",
        "push": "images:push",
        "pull": "images:pull",
        "save": "saved:save",
        "load": "saved:load",
        "keys": "keys:keys",
        "clean": "clean:clean",
    },
    "The matrix": {
        "show": "matrix:show",
        "lint": "matrix:lint",
        "render": "images:render",
        "lock": "images:lock",
        "rehearse": "rehearse:rehearse",
        "simulate": "simulate:simulate",
    },
    "One run, and programs of your own": {
        "run-cell": "run_cell:run_cell_command",
        "exec": "run_cell:execute",
        "env": "own_program:env",
        "devcontainer": "own_program:devcontainer",
    },
    "Records": {
        "strike": "by_hand:strike_command",
        "host-changed": "by_hand:host_changed",
        "export": "share:export_",
        "import": "share:import_",
        "index": "records:index",
    },
    "Shell and Slurm": {
        "completion": "completion:completion",
        "slurm-prolog": "clusters:slurm_prolog",
        "slurm-epilog": "clusters:slurm_epilog",
        "slurm-node": "clusters:slurm_node",
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}
# On a terminal these commands announce at once that they have started, because their imports take seconds.
TAKES_SECONDS = ("plan", "run", "train")
HELP = frozenset({"--help", "-h"})
# Commands of the app that have no namesake here.
OF_APP = ("synth", "merge", "check", "features", "plot", "evaluate", "predict")
# What other tools call a command, where no name here is near.
CALLED_ELSEWHERE = {
    "diff": "compare",
    "list": "show",
    "ls": "show",
    "logs": "explain",
    "results": "status",
    "test": "run",
}
# Used on the nodes of a cluster; not listed in the help.
HIDDEN = "slurm-node"
# Former names of commands, still accepted and not listed.
RENAMED = {"drill": "inject"}


def with_dashes(word: str) -> str:
    """Return the name of an option or a command as it is declared."""
    return word.replace("_", "-")


def help_line(name: str) -> str:
    """Return the first sentence of a command's help, read from its source because some modules are slow to import."""
    module, function = COMMANDS[name].split(":")
    text = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.*?\.)(?=\s|""")', text, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


class TypedFormatter(click.HelpFormatter):
    """Help texts that show each command in backquotes as the user has to type `matrix` on this host."""

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(as_typed(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: int, **kwargs: int) -> None:
        """Write a list of names with their meanings."""
        super().write_dl([(name, as_typed(text)) for name, text in rows], *args, **kwargs)


class TypedContext(click.Context):
    """The context of a command whose help is formatted by `TypedFormatter`."""

    formatter_class = TypedFormatter


class Commands(click.Group):
    """The group of the commands in COMMANDS."""

    context_class = TypedContext

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of the listed commands."""
        return [name for name in COMMANDS if name != HIDDEN]

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import and return the command of that name; None if there is none."""
        name = RENAMED.get(name, name)
        if name not in COMMANDS:
            return None
        module, function = COMMANDS[name].split(":")
        with exit_on_interrupt():
            command: click.Command = getattr(import_module(f"harness.cli.{module}"), function)
        command.context_class = TypedContext
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed.

        Raises:
            click.UsageError: when there is no command of that name; names the nearest listed command.
        """
        name = with_dashes(arguments[0])
        if RENAMED.get(name, name) not in COMMANDS and name[:1] != "-" and not context.resilient_parsing:
            near = [CALLED_ELSEWHERE[name]] if name in CALLED_ELSEWHERE else []
            near = near or get_close_matches(name, self.list_commands(context), n=1)
            hint = f" (did you mean `matrix {near[0]}`?)" if near else ""
            if name in OF_APP:
                hint = f" (it is the app's: `matrix exec cpu-plain vpoc {name}`)"
            raise click.UsageError(f"No such command {arguments[0]!r}{hint}", context)
        context.meta[TYPED] = tuple(arguments)
        silent = context.resilient_parsing or HELP.intersection(arguments)
        if name in TAKES_SECONDS and err.is_terminal and not silent:
            echo("Reading the matrix file and this host ...", err=True)
        return super().resolve_command(context, arguments)

    def invoke(self, context: click.Context) -> object:
        """Run a command. Commands in an error's text are rewritten here, while the typed options are still known."""
        try:
            return super().invoke(context)
        except UserError as error:
            error.args = (as_typed(str(error)),)
            raise

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, by section."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, help_line(name)) for name in commands if name != HIDDEN])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and the options, that begin with what was typed."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=help_line(name)) for name in names),
            *click.Command.shell_complete(self, context, incomplete),
        ]
