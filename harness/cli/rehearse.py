"""`matrix rehearse`: takes a stack through every step from lock to record before anything is downloaded."""

import sys
from contextlib import closing
from dataclasses import replace

import click

from harness.base.errors import UserError
from harness.base.interrupts import interruptible
from harness.cli.shared import (
    INTERRUPTED,
    Settings,
    as_json,
    err,
    executor_option,
    known,
    pass_settings,
    print_json,
    print_lines,
)
from harness.environments.capabilities import choose_engine
from harness.evidence.records import Results
from harness.matrix.cells import Cell, Preset
from harness.matrix.stacks import ExecutorName, Stack
from harness.rehearsal.real_host import first_shown
from harness.rehearsal.rehearse import Rehearsing, can_be_rehearsed, one_of_each_source
from harness.rehearsal.steps import Rehearsal, RehearsedStack, RehearsedStep
from harness.screen.steps import Steps
from harness.screen.terminal import echo

REHEARSAL_FOLDER = "rehearsal"


@click.command()
@click.argument("stacks", nargs=-1, metavar="[STACK]...")
@executor_option("As images or in virtual environments (default: images where a Docker engine answers).")
@click.option("--stub", is_flag=True, help="Stubs for all packages and for the app: seconds, no download, no image.")
@as_json
@pass_settings
def rehearse(
    settings: Settings, stacks: tuple[str, ...], executor: ExecutorName | None, stub: bool, as_json: bool
) -> None:
    """Take ROCm stacks from lock to record without downloads, and say what a real host will do at each step.

    A package index on loopback answers like each stack's source, with torch's CPU wheel under the name of its ROCm
    wheel and stubs of ROCm's packages; the CPU wheels are those that the cpu stack fetches anyway (0.3 GB). Locking,
    fetching, building, verifying and recording use the real code; the app trains on the CPU. Default: one stack of each
    source of wheels. The records are in RESULTS/rehearsal; they are evidence of nothing but the harness.

    Exit status: 0 when nothing failed, 1 when something did, 130 after Ctrl-C.
    """
    chosen = _chosen(settings, stacks)
    cells = [Cell(stack, Preset(name="plain", description="nothing set")) for stack in chosen]
    engine = None if stub else choose_engine(cells, executor)
    results = Results(settings.results.folder / REHEARSAL_FOLDER)
    place = {stack.name: f"{number} of {len(chosen)}" for number, stack in enumerate(chosen, 1)}
    found: list[RehearsedStack] = []
    interrupted = False
    with interruptible():
        try:
            with Steps(err) as steps:
                rehearsing = Rehearsing(settings.matrix, results, engine, stub, settings.root, notify=steps.step)
                if not as_json:
                    rehearsing = replace(
                        rehearsing, begun=lambda one: _show_stack(one, place[one.stack]), done=_show_step
                    )
                with closing(rehearsing.all(chosen)) as carried:
                    for one in carried:
                        found.append(one)
                        if not as_json:
                            _show_end(one)
        except KeyboardInterrupt:
            interrupted = True
    passed = len(found) == len(chosen) and not any(one.problem for one in found)
    if as_json:
        told = Rehearsal(passed=passed, interrupted=interrupted, results=str(results.folder), stacks=tuple(found))
        print_json(told.model_dump(mode="json", by_alias=True))
    else:
        done = sum(one.outcome == "completed" for one in found)
        echo(f"{done} of {len(chosen)} stacks rehearsed to the end. A rehearsal is no evidence of any stack.")
        print_lines(["A real host will be the first to show:", *(f"  - {line}" for line in first_shown(chosen))])
    if interrupted:
        err.print("Interrupted: nothing but records is left of the rehearsal.")
    sys.exit(INTERRUPTED if interrupted else 0 if passed else 1)


def _chosen(settings: Settings, names: tuple[str, ...]) -> list[Stack]:
    """Return the stacks of these names; without names, one stack of each source.

    Raises:
        UserError: when a name is unknown, or its stack has nothing to rehearse.
    """
    each = one_of_each_source(settings.matrix, "default")
    if not names:
        return each
    by_name = {**{stack.name: stack for stack in each}, **settings.matrix.stacks}
    chosen = [by_name[known(name, by_name, "stack")] for name in dict.fromkeys(names)]
    for stack in chosen:
        if not can_be_rehearsed(stack):
            raise UserError(f"stack {stack.name}: takes no wheels of torch for ROCm from an index; name one that does")
    return chosen


def _show_stack(stack: RehearsedStack, place: str) -> None:
    how = "as an image" if stack.executor == "docker" else "in a virtual environment"
    echo(f"{stack.stack}, from source {stack.source}, {how}; torch: {stack.torch}; run: {stack.app}; {place}")


def _show_end(stack: RehearsedStack) -> None:
    if stack.problem:
        echo(f"  stopped: {stack.problem}")
    elif stack.left_out:
        echo(f"  the rest is left out: {stack.left_out}")


def _show_step(step: RehearsedStep) -> None:
    refused = f", {step.refused} of them answered 403" if step.refused else ""
    asked = f" ({step.requests} requests to the index on loopback{refused})" if step.requests else ""
    echo(f"  {step.step:<6} {step.seconds:6.1f} s  {step.did}{asked}")
    echo(f"  {'':<17} a real host: {step.real}")
