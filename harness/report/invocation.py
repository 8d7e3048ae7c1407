"""Commands as the user types them on this host, and the options that give another run the work of a run. Pure."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.command_words import PROGRAM, with_option, with_typed_commands
from harness.base.durations import LONGEST_SECONDS
from harness.evidence.files.run_files import Intent
from harness.matrix.cells import Matrix
from harness.matrix.programs import STDOUT, Program
from harness.matrix.stages import CHANGEABLE
from harness.matrix.workload_options import OF_APP, OWN_DATA, options_of
from harness.matrix.workloads import Workload
from harness.registry.share.shared_ids import is_shared_id

# `matrix export` writes this in place of the path of a data file.
ELSEWHERE = "<data>"
USUAL_LOOKBACK: int = Workload.model_fields["lookback"].default


@dataclass(frozen=True)
class Invocation:
    """How `matrix` is typed on this host: the program, and the global options that were given."""

    program: str = PROGRAM
    options: tuple[str, ...] = ()

    def command(self, *words: str) -> str:
        """Return a command, quoted for a shell."""
        return shlex.join([self.program, *self.options, *words])

    def in_results(self, folder: Path) -> "Invocation":
        """Return how commands on the runs in another results folder are typed."""
        return replace(self, options=with_option(self.options, "--results", str(folder)))

    def in_text(self, text: str) -> str:
        """Return a text with `matrix`, where it begins a command in backquotes, replaced by how it is typed."""
        return with_typed_commands(text, shlex.quote(self.program), self.command())


AS_MADE = Invocation()


def has_own_data(intent: Intent) -> bool:
    """Return whether a run read bars of the user's own from a file on this host."""
    return (
        intent.program is None
        and not intent.data.is_synthetic
        and intent.data.path != ELSEWHERE
        # For an imported run the path may be any path.
        and not is_shared_id(intent.run_id)
    )


def has_data_elsewhere(intent: Intent) -> bool:
    """Return whether a run's data stayed on another host; whether they were the user's own is then unknown."""
    return intent.program is None and intent.data.path == ELSEWHERE


def changed_options(intent: Intent, matrix: Matrix) -> dict[str, Any]:
    """Return the options in which a run differs from its workload in the matrix file, because a stage changed them."""
    named = matrix.workloads.get(intent.workload)
    if named is None:
        return {}
    usual = options_of(named)
    kept = {name: intent.options[name] for name in ("strategy", *CHANGEABLE) if name in intent.options}
    return {name: value for name, value in kept.items() if value != usual.get(name)}


def has_other_strategy(intent: Intent, matrix: Matrix) -> bool:
    """Return whether a run used several devices in a way that its workload in the matrix file, if any, does not."""
    if intent.workload in matrix.workloads:
        return "strategy" in changed_options(intent, matrix)
    return intent.options.get("strategy") not in (None, "single")


def lookback_words(intent: Intent, usual: int = USUAL_LOOKBACK) -> tuple[str, ...]:
    """Return the option that gives another run the lookback of this run; nothing if it is the usual lookback."""
    lookback = intent.options.get("lookback", usual)
    return () if lookback == usual else ("--lookback", str(lookback))


def work_words(intent: Intent, matrix: Matrix, workload: str | None = None) -> tuple[str, ...]:
    """Return the options of `matrix run` that give another run the workload, executor and data of this run.

    `workload`: the workload to name instead of the run's own; "" to name none. A training of the user's own data has no
    workload to name either.
    """
    if intent.program and not workload and intent.workload.startswith(OF_APP):
        # The program's command would have to come last, after other words; the record has it.
        return ("--executor", intent.executor)
    if workload is None and intent.workload != OWN_DATA:
        workload = intent.workload
    words = ["--workload", workload] if workload else []
    words += ["--executor", intent.executor]
    named = matrix.workloads.get(workload or "")
    words += lookback_words(intent, named.lookback if named else USUAL_LOOKBACK)
    if has_own_data(intent):
        words += ["--data", intent.data.path]
    # A program's command may be any, also one that begins with no interpreter.
    if intent.stack == "host" and not intent.program:
        words += [word for command in [*intent.commands.values()][:1] if command for word in ("--python", command[0])]
    return tuple(words)


def program_words(program: Program, time_limit: int) -> tuple[str, ...]:
    """Return the options that give another run a program that was named by --app, and, last, its command."""
    given = {
        "--app": program.source,
        "--data": next(iter(program.data), None),
        "--requirements": program.requirements,
        "--progress": None if program.progress == STDOUT else program.progress,
        "--time-limit": f"{min(time_limit, LONGEST_SECONDS)}s",
        "--stall-limit": f"{program.stall_limit}s",
    }
    words = [word for name, value in given.items() if value for word in (name, value)]
    words += [word for one in program.produces for word in ("--produces", one.file)]
    return (*words, "--", *program.command)
