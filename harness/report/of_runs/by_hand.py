"""Turn a run's intent into the commands that repeat it by hand. Pure."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from harness.campaign.answered import Command
from harness.environments.executors.container import WORK, Container, container_from_record
from harness.evidence.files.run_files import Intent
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.matrix.cells import Matrix
from harness.matrix.programs import Program
from harness.matrix.variants import VARIANT
from harness.matrix.workload_options import OF_APP
from harness.report.invocation import AS_MADE, ELSEWHERE, Invocation, changed_options, program_words, work_words
from harness.training.fallbacks import SET_VARIABLES, fallback_variables

# Work here, not in the run folder, whose content is evidence.
FOLDER = Path("/tmp/by-hand")  # noqa: S108
WORK_FOLDER, TEMPORARY = WorkFolder(FOLDER), RunFolder(FOLDER).temporary
RUN_FOLDER = "--run-dir"
PROGRAM = "vpoc"


def commands_by_hand(intent: Intent) -> tuple[str, ...]:
    """Return commands that train as the run did, in a separate folder, one a line; nothing where it tells no commands.

    The report leaves out the commands in another user's or another host's record. A program of the user's own has
    none, because they could not make its working folder.
    """
    if not intent.commands or intent.program:
        return ()
    container = container_from_record(intent.container) if intent.container else None
    return (_make_folders(container), *(_command(intent, phase, container) for phase in intent.commands))


def again(intent: Intent, matrix: Matrix, invocation: Invocation = AS_MADE) -> Command | None:
    """Return the command that repeats the run: a `matrix` command, or else the commands by hand.

    No `matrix` command exists for workloads and cells that the matrix file does not have, for options that stages
    changed, and for injected faults. Return None if the data stayed on another host, if there are no commands by hand
    where no `matrix` command exists, if the interpreter of the stack `host` is not known, or if the fault came from
    outside the app.
    """
    fault = intent.injected_fault
    if intent.data.path == ELSEWHERE or (fault and not any(fault in words for words in intent.commands.values())):
        return None
    if intent.program and intent.commands and intent.workload.startswith(OF_APP) and not fault:
        return _program_again(intent, intent.program, matrix, invocation)
    listed = intent.workload in matrix.workloads and intent.cell in matrix.cells
    if fault or not listed or changed_options(intent, matrix):
        by_hand = "\n".join(commands_by_hand(intent))
        return Command(command=by_hand, why="Run it again, by hand; nothing is recorded") if by_hand else None
    if intent.stack == "host" and (intent.program or not intent.commands):
        return None
    words = invocation.command("run-cell", intent.cell, *work_words(intent, matrix))
    return Command(command=words, why="Run it again, watched and recorded")


def _program_again(intent: Intent, program: Program, matrix: Matrix, invocation: Invocation) -> Command | None:
    """Return the command that repeats a program that was named by --app, with the variables that a fallback set."""
    cell, _, fallbacks = intent.cell.partition(VARIANT)
    if intent.stack == "host" or cell not in matrix.cells:
        return None
    if not SET_VARIABLES.issuperset(names := fallbacks.split("+") if fallbacks else []):
        return None
    variables = fallback_variables(names, intent.device, intent.torch)
    if variables:
        sets = ("env", *(f"{name}={value}" for name, value in variables.items()))
        program = program.model_copy(update={"command": (*sets, *program.command)})
    words = invocation.command(
        "run-cell", cell, *work_words(intent, matrix), *program_words(program, intent.time_limit)
    )
    begins = " from the beginning" if program.resumes else ""
    return Command(command=words, why=f"Run it again{begins}, watched and recorded")


def _make_folders(container: Container | None) -> str:
    places = [WORK_FOLDER.output, *WORK_FOLDER.places]
    if container is None:
        places.append(TEMPORARY)
    return shlex.join(["mkdir", "-p", *map(str, places)])


def _command(intent: Intent, phase: str, container: Container | None) -> str:
    words, variables = intent.commands[phase], intent.variables.get(phase, {})
    if container is not None:
        by_entry_point = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else words
        return replace(container, work=str(FOLDER)).command_line(variables, by_entry_point)
    folder = words[words.index(RUN_FOLDER) + 1] if RUN_FOLDER in words[:-1] else str(WORK)
    moved = {folder: str(FOLDER), variables.get("TMPDIR", folder): str(TEMPORARY)}
    set_ = [f"{name}={_moved(value, moved)}" for name, value in sorted(variables.items())]
    return shlex.join(["env", "--ignore-environment", *set_, *(_moved(word, moved) for word in words)])


def _moved(word: str, places: dict[str, str]) -> str:
    """Return a path inside an old folder as the same path inside the new folder; any other word unchanged."""
    for old, new in places.items():
        if word == old or word.startswith(old + os.sep):
            return new + word[len(old) :]
    return word
