"""`matrix train`: parses its options; the training itself is in harness/training."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from harness.base.errors import UserError
from harness.campaign.bench.plan import BEST
from harness.campaign.under_way import noted_under_way
from harness.cli.completion import complete_cells_and_best, complete_workloads
from harness.cli.in_background import start_in_background, through_closed_terminal
from harness.cli.program_options import WithProgram, own_program, program_options, with_program_copy
from harness.cli.records import report_may_fail, report_on
from harness.cli.shared import (
    INTERRUPTED,
    FiniteRange,
    Settings,
    as_json,
    ask_user,
    confirm,
    data_option,
    err,
    executor_option,
    known,
    pass_settings,
    typed_words,
    warn,
)
from harness.cli.training_output import print_beginning, print_end
from harness.evidence.gpus.host_changes import host_of
from harness.matrix.stacks import ExecutorName
from harness.matrix.workload_options import REPEATED
from harness.matrix.workloads import Workload
from harness.screen.display import CampaignDisplay
from harness.training.choose_cell import CellRequest
from harness.training.options import GIVEN, YEARS, own_workload, training_options
from harness.training.own_program import PROGRAM_NAME
from harness.training.prepare import TrainingRequest, prepare_training
from harness.training.state import open_state_file
from harness.training.train import TrainingResult

# Not a cell, but the name of the tag, which users may give as one.
KNOWN_GOOD = "known-good"


@click.command("train", cls=WithProgram)
@data_option("Merged CSV to train on; with --app: its file or folder.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the model and what belongs to it.",
)
@click.option("--name", help="Name of the model file, without .pt.  [default: that of the data file]")
@click.option(
    "--cell",
    shell_complete=complete_cells_and_best,
    help="Cell to train in, or `best`: the plain one.  [default: the known-good one, else what the answer names]",
)
@click.option(
    "--registry", envvar="MATRIX_REGISTRY", metavar="HOST[/PATH]", help="Registry that known-good tags are in."
)
@click.option("--force", is_flag=True, help="Use the tag even if its evidence is of another host, or has expired.")
@click.option(
    "--allow-cpu",
    is_flag=True,
    help="Train on the CPU, slowly, if no GPU can. Not needed on a host without a GPU.",
)
@click.option("--resume", is_flag=True, help="Resume from the checkpoints in the output folder, with more --epochs.")
@click.option(
    "--inject-fault",
    "injected_fault",
    metavar="NAME@STEP",
    help="Inject a fault into the first attempt, to see that it is survived.",
)
@click.option("--drill", "injected_fault", hidden=True)
@executor_option("Train in a container or as a process (default: a container where a Docker engine answers).")
@click.option(
    "--expect-hours",
    type=FiniteRange(0, min_open=True),
    metavar="HOURS",
    help="Print what a training of this many hours can expect: interruptions, restarts, time.  [default: 10]",
)
@click.option(
    "--detach", "in_background", is_flag=True, help="Continue when this terminal closes; `matrix watch` attaches."
)
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@program_options
@click.option(
    "--workload", shell_complete=complete_workloads, help="Program of the matrix file to train, in place of --app."
)
@click.option("--resume-with", metavar="WORDS", help="With --app: arguments to add when it is started again.")
@click.option("--checkpoint", metavar="PATTERN", help="With --app: its checkpoints, such as 'out/step-*.pt'.")
@training_options
@as_json
@pass_settings
def train_command(
    settings: Settings,
    /,
    *,
    data: Path | None,
    output: Path,
    name: str | None,
    cell: str | None,
    registry: str | None,
    force: bool,
    allow_cpu: bool,
    resume: bool,
    injected_fault: str | None,
    executor: ExecutorName | None,
    expect_hours: float | None,
    in_background: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train on your data, to the end: through crashes, hangs and out of memory.

    It uses the known-good cell of this host, from --registry if given; else the cell that the answer of the last
    campaign names; else the first plain one. After a failure a new process resumes from the last checkpoint, with other
    settings if the same ones fail again. After Ctrl-C, a kill or a reboot the same command resumes. OUTPUT gets the
    model, its metadata, curves, checkpoints, and attempts.jsonl.

    \b
    matrix train --data merged.csv --output TRAINING
    matrix train --data merged.csv --output TRAINING --epochs 5 --batch-size 128
    matrix train --data merged.csv --output TRAINING --cell rocm6.3-torch2.9.1-plain
    matrix train --app DIR --output TRAINING --resume-with=--resume -- python train.py

    With --app a program of your own is trained to its end in the same way, its numbers not checked; OUTPUT gets its
    files. When the program is started again, it finds the files that it wrote before.

    Exit status: 0 there is a model, 1 nothing is left to try, 2 something to fix, 130 interrupted.
    """  # noqa: D301 - click needs the character itself
    _check_cell(settings, cell)
    if injected_fault is not None:
        _check_fault(injected_fault)
    given = {"data": data, "name": name, "resume": resume, "inject_fault": injected_fault, **options}
    name, workload, data = _what(settings, given)
    of_cell = CellRequest(cell, registry, force, workload.strategy, allow_cpu, _ask)
    again = settings.invocation.command(*typed_words())
    request = TrainingRequest(
        data, output, name, workload, of_cell, executor, resume, injected_fault, settings.root, again
    )
    with open_state_file(settings.results, host := host_of(settings.results, settings.root), output, name) as file:
        prepared = prepare_training(request, settings.matrix, settings.results, host, file)
        print_beginning(prepared, request, expect_hours)
        prepared.plan.check_feasible()
        confirm(prepared.plan.download_gb, yes=yes)
        if not in_background:
            try:
                with (
                    through_closed_terminal(settings, what="training"),
                    noted_under_way(settings.results, host.machine, again, file.file.stem) as note,
                    CampaignDisplay(err, doing=note.doing, command=settings.invocation.command) as display,
                ):
                    warn(list(note.others))
                    ended = prepared.run(display)
            except KeyboardInterrupt:
                err.print(escape(f"Interrupted; this continues where it stopped: `{again}`"), soft_wrap=True)
                sys.exit(INTERRUPTED)
    if in_background:
        # From here on, the process in the background holds the training.
        start_in_background(settings, as_json=as_json)
        return
    print_end(settings, prepared, ended, request, as_json=as_json)
    with report_may_fail(after="training"):
        if workload.program is not None:
            _remember(settings, host.machine, ended)
        report_on(settings).write(settings.results)
    sys.exit(0 if ended.model else 1)


def _remember(settings: Settings, machine: str, ended: TrainingResult) -> None:
    """Remember how the program ended, so that the next command is about it and not about our app."""
    # Imported here because it is needed only after a program of the user's own.
    from harness.campaign.answered import LastAnswer, last_answer, remember_answer  # noqa: PLC0415
    from harness.evidence.index import Index  # noqa: PLC0415
    from harness.report.sections.of_program import answer_of_program  # noqa: PLC0415

    made = {attempt["run"] for attempt in ended.attempts}
    if rows := [row for row in Index(settings.results).rows() if row.run_id in made]:
        named = last_answer(settings.results, machine).named
        answer = LastAnswer(named, *answer_of_program(rows, settings.invocation), of_program=True)
        remember_answer(settings.results, machine, answer)


def _check_cell(settings: Settings, cell: str | None) -> None:
    if cell == KNOWN_GOOD:
        raise UserError(
            f"--cell {cell} is not a cell; leave --cell out: the known-good one is used if there is a tag for this "
            "host (`matrix tags`)"
        )
    if cell and cell != BEST:
        known(cell, settings.matrix.cells, "cell")


def _ask(question: str) -> bool:
    """Return the user's answer; no if there is no terminal."""
    return sys.stdin.isatty() and ask_user(question, "--force")


def _what(settings: Settings, given: Mapping[str, Any]) -> tuple[str, Workload, Path | None]:
    """Return what to train: its name, the workload, and the data file if our app reads it (else None).

    Raises:
        UserError: when it cannot be trained.
    """
    if given["app"] or given["workload"]:
        others = ("name", "resume", "inject_fault", *GIVEN)
        _check_of_program({name: given[name] for name in others if name in given})
    if own := _program(settings, given):
        return PROGRAM_NAME, own, None
    if given["data"] is None:
        raise UserError("--data FILE is what to train on; or give --app DIR, the folder of a program of your own")
    name = given["name"] or given["data"].stem
    if Path(name).name != name:
        raise UserError(f"--name {name}: give a file name without folders; --output is the folder")
    return name, own_workload({one: given[one] for one in GIVEN if one in given}), given["data"]


def _program(settings: Settings, options: Mapping[str, Any]) -> Workload | None:
    """Return the requested program of the user's own; None for our app.

    Raises:
        UserError: when the program cannot be run, or options of our app are given with it.
    """
    of_program = {name: options[name] for name in ("resume_with", "checkpoint") if options[name] is not None}
    if of_program and not options["app"]:
        raise UserError(f"--{next(iter(of_program)).replace('_', '-')} goes with --app DIR, the folder of your program")
    if options["workload"] and not options["app"]:
        name = known(options["workload"], settings.matrix.workloads, "workload")
        chosen = settings.matrix.workloads[name]
        if chosen.program is None:
            raise UserError(f"--workload {name} is our app's: leave it out, and give --data and the options of the app")
        if options["data"]:
            raise UserError(f"--data: workload {name} names its own; leave it out")
        return with_program_copy(chosen)
    more = {name.removesuffix("_with"): value for name, value in of_program.items()}
    own = own_program(options, usual_limit=YEARS, **more)
    return with_program_copy(own) if own else None


def _check_of_program(given: Mapping[str, Any]) -> None:
    """Refuse options of our app together with a program of the user's own, which does not know them."""
    for name, value in given.items():
        if value not in (None, (), False):
            word = REPEATED.get(name, f"--{name.replace('_', '-')}")
            more = "; --resume-with gives its own words" if name == "resume" else ""
            raise UserError(f"{word} is for our app, which your program replaces; leave it out{more}")


def _check_fault(given: str) -> None:
    """Refuse a fault that the app cannot inject: the app would inject nothing or refuse the attempt."""
    # Imported here because it is needed only when a fault is given.
    from harness.faults.kinds import APP_KINDS  # noqa: PLC0415

    name, _, place = given.partition("@")
    try:
        known(name, APP_KINDS, "kind of fault")
    except UserError as error:
        raise UserError(f"--inject-fault {given}: {error}") from None
    if not re.fullmatch(r"[1-9]\d{0,8}(/\d{1,4})?", place):
        raise UserError(
            f"--inject-fault {given}: say in which step, and perhaps on which rank: {name}@20 or {name}@20/1"
        )
