"""The commands by section: where each is, and its line in the list; each is imported when it is asked for."""

from difflib import get_close_matches
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from harness.base.interrupts import exit_on_interrupt
from harness.cli.shared import TYPED, err
from harness.screen.terminal import echo

# Where a command is, and the first sentence of its help; one without is not listed. Each is imported when it is asked
# for, help lines not: what some of them need takes seconds to import.
SECTIONS = {
    "From the machine to a model": {
        "doctor": (
            "cli.doctor:doctor",
            "Look at this machine before anything runs: devices, driver, PCIe, Docker, disk; say what to fix, and how.",
        ),
        "plan": ("cli.run:plan", "Print what `matrix run` would do here: cells, runs, disk, time."),
        "run": (
            "cli.run:run",
            "Run cells (default: a selection) one after the other; continue where an interrupted campaign stopped.",
        ),
        "watch": (
            "cli.watch:watch",
            "Show what runs with this results folder, started by whichever process of this host, until it ends.",
        ),
        "status": (
            "cli.status:status",
            "Say what the records show: a verdict for every cell that was run, or every run of one CELL.",
        ),
        "report": (
            "cli.records:report",
            "Write the report into the results folder: report.html, .md, .json, and .xml (JUnit).",
        ),
        "train": (
            "cli.train:train_command",
            "Train on your data, to the end: through crashes, hangs and out of memory.",
        ),
    },
    "Why something failed": {
        "explain": (
            "cli.explain:explain",
            "Say why a run failed: class, cause, the lines that show it, and what helps.",
        ),
        "isolate": (
            "cli.isolate:isolate_command",
            "Tell whether failures of CELL are its own, its stack's, a GPU's or the host's.",
        ),
        "minimise": (
            "cli.minimise:minimise_command",
            "Find out which variables matter, or how little of a failed run still fails.",
        ),
        "compare": (
            "cli.minimise:compare_command",
            "Test whether the first CELL differs from each of the others in how often its runs pass.",
        ),
        "report-bug": (
            "cli.report_bug:report_bug",
            "Write a failed RUN down as an issue for ROCm or PyTorch, with nothing private in it; it sends nothing.",
        ),
        "inject": (
            "cli.inject:inject",
            "Inject faults into real runs, and see that each is found, explained and survived.",
        ),
    },
    "Images and tags": {
        "build": ("cli.images:build", "Build the images of cells (default: a selection)."),
        "verify": (
            "cli.verify:verify",
            "Build an image again from what its labels name, and say whether it is the same, or which files differ.",
        ),
        "tags": ("cli.promote:tags", "List the known-good tags that stand, and whether this host may use them."),
        "promote": (
            "cli.promote:promote",
            "Move the tags known-good-SCOPE to the images that qualify for them (of CELL alone, where it is given).",
        ),
        "demote": ("cli.promote:demote", "Take a known-good TAG away, on this host and in the registry that is given."),
        "push": ("cli.images:push", "Push a cell's image to a registry, with the credentials of `docker login`."),
        "pull": (
            "cli.images:pull",
            "Pull a cell's image from a registry, so that `matrix run` uses it instead of building one.",
        ),
        "save": (
            "cli.saved:save",
            "Save the images of CELLS to FOLDER, such as one on a stick, for a host without a registry.",
        ),
        "load": (
            "cli.saved:load",
            "Load the images of CELLS (default: all) from a FOLDER that `matrix save` wrote.",
        ),
        "keys": (
            "cli.keys:keys",
            "List the keys whose signatures are trusted here; yours is made where there is none yet.",
        ),
        "clean": (
            "cli.clean:clean",
            "Remove this checkout's environments, copies of programs, and images without a known-good tag; asks first.",
        ),
    },
    "The matrix": {
        "show": (
            "cli.matrix:show",
            "Print what the matrix file resolves to: selections, stacks, presets and workloads.",
        ),
        "lint": (
            "cli.matrix:lint",
            "Name every preset variable that does nothing, contradicts another or is the default, and where.",
        ),
        "render": ("cli.images:render", "Print the Dockerfile of a cell."),
        "lock": (
            "cli.images:lock",
            "Resolve what a stack consists of: wheel hashes and the digest of its base image, into images/locks.",
        ),
        "rehearse": (
            "cli.rehearse:rehearse",
            "Carry ROCm stacks from lock to record with nothing downloaded, and say what a real host will do at each "
            "step.",
        ),
        "simulate": (
            "cli.simulate:simulate",
            "Write a simulated host (two RX 7900 XT) into FOLDER, for `matrix --root FOLDER ...`.",
        ),
    },
    "One run, and programs of your own": {
        "run-cell": ("cli.run_cell:run_cell_command", "Run one cell once, watch it, and leave its record."),
        "exec": (
            "cli.run_cell:execute",
            "Run `vpoc ...` by hand in a cell's environment: `matrix exec cpu-plain vpoc train --data merged.csv`.",
        ),
        "env": (
            "cli.own_program:env",
            "Print what CELL sets, for a program of your own: variables, a `docker run` line.",
        ),
        "devcontainer": (
            "cli.own_program:devcontainer",
            "Write a devcontainer.json of CELL: its image, with the GPUs of this host.",
        ),
    },
    "Records": {
        "strike": (
            "cli.by_hand:strike_command",
            "Strike out RUN by hand: it counts no more, and its reason is shown on verdict, tag and report.",
        ),
        "host-changed": (
            "cli.by_hand:host_changed",
            'Say WHAT changed about this host, such as "new PSU": from now on it is another kind of host.',
        ),
        "export": ("cli.share:export_", "Write the records into FILE (.tar.gz), for `matrix import` on another host."),
        "import": ("cli.share:import_", "Add the records in FILES, which `matrix export` made on other hosts."),
        "index": ("cli.records:index", "Rebuild records.db from the run folders, which are the truth."),
    },
    "Shell and Slurm": {
        "completion": ("cli.completion:completion", "Print the completion of `matrix` for SHELL: bash, zsh or fish."),
        "slurm-prolog": (
            "cli.clusters:slurm_prolog",
            "Print how to install the hooks of Slurm; as Slurm's Prolog, fail where a GPU of this node is unhealthy.",
        ),
        "slurm-epilog": (
            "cli.clusters:slurm_epilog",
            "As Slurm's Epilog, end what a job left of its runs, containers too; fail where something cannot be "
            "killed.",
        ),
        "slurm-node": ("cli.clusters:slurm_node", ""),
    },
}
COMMANDS = {name: place for section in SECTIONS.values() for name, place in section.items()}
# Where somebody watches, these say at once that they are at work: what they need takes seconds to import.
TAKES_SECONDS = ("plan", "run", "train")
HELP = frozenset({"--help", "-h"})
# Commands under their former names, not listed.
RENAMED = {"drill": "inject"}


def with_dashes(word: str) -> str:
    """Return the name of an option or a command as it is declared."""
    return word.replace("_", "-")


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
        name = with_dashes(arguments[0])
        if RENAMED.get(name, name) not in COMMANDS and name[:1] != "-" and not context.resilient_parsing:
            near = get_close_matches(name, self.list_commands(context), n=1)
            hint = f" (did you mean `matrix {near[0]}`?)" if near else ""
            raise click.UsageError(f"No such command {arguments[0]!r}{hint}", context)
        context.meta[TYPED] = tuple(arguments)
        if name in TAKES_SECONDS and err.is_terminal and not HELP.intersection(arguments):
            echo("Reading the matrix file and this host ...", err=True)
        return super().resolve_command(context, arguments)

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, by section."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, told) for name, (_, told) in commands.items() if told])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, or else options, that begin with what was typed."""
        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=COMMANDS[name][1]) for name in names),
            *click.Command.shell_complete(self, context, incomplete),
        ]
