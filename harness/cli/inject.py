"""The command that injects faults on purpose."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from harness.base.interrupts import interruptible
from harness.cli.shared import INTERRUPTED, Settings, as_json, err, known, out, pass_settings, print_json, print_lines
from harness.evidence.records import Results
from harness.faults.carry_out import carry_out
from harness.faults.judge import Drilled, all_right
from harness.faults.kinds import KINDS, Drill
from harness.faults.place import make_place
from harness.faults.table import drilled_line, drilled_table, kinds_table, made_by, problem_lines
from harness.matrix.cells import ExecutorName
from harness.screen.display import Steps

FOLDER = "drills"


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@click.option(
    "--executor",
    type=click.Choice(["docker", "process"]),
    envvar="MATRIX_EXECUTOR",
    show_envvar=True,
    help="In containers or as processes (default: containers where a Docker engine answers).",
)
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="How often each is made.")
@click.option("--list", "only_list", is_flag=True, help="Print the kinds; make none.")
@as_json
@pass_settings
def inject(
    settings: Settings,
    kinds: tuple[str, ...],
    executor: ExecutorName | None,
    repeats: int,
    only_list: bool,
    as_json: bool,
) -> None:
    """Inject faults into real runs, and see that each is found, explained and survived.

    Every drill is a short training on the CPU with one fault (default: every KIND), and a healthy run after it.
    `survived` means: there is a record, nothing was left behind, and the healthy run completed. The records are
    in RESULTS/drills; they are evidence of nothing but the harness.

    Exit status: 0 when all that were made are right, 1 when one is not, 130 after Ctrl-C.
    """
    chosen = _chosen(kinds)
    if only_list:
        _print_kinds(chosen, as_json=as_json)
        return
    drilled: list[Drilled] = []
    interrupted = False
    with interruptible():
        try:
            with Steps(err) as steps:
                drills = Results(settings.results.folder / FOLDER)
                place = make_place(drills, settings.matrix, executor, steps.step, settings.root)
                for one in carry_out(chosen, place, repeats, steps.step):
                    drilled += [one]
                    err.print(drilled_line(one), soft_wrap=True)
        except KeyboardInterrupt:
            interrupted = True
        _print_drilled(drilled, as_json=as_json)
        made = sum(one.record is not None for one in drilled)
        if interrupted or not made:
            err.print(f"{'Interrupted: ' if interrupted else ''}{made} of {len(chosen) * repeats} drills were made.")
        else:
            err.print(f"Why each ended as it did: matrix --results {settings.results.folder / FOLDER} explain RUN")
    sys.exit(INTERRUPTED if interrupted else 0 if all_right(drilled) else 1)


def _chosen(names: Sequence[str]) -> list[Drill]:
    by_name = {kind.name: kind for kind in KINDS}
    return [by_name[known(name, by_name, "kind of drill")] for name in names] or list(KINDS)


def _print_kinds(kinds: Sequence[Drill], *, as_json: bool) -> None:
    if as_json:
        print_json([_describe(kind) for kind in kinds])
    else:
        out.print(kinds_table(kinds))


def _describe(kind: Drill) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "what": kind.what,
        "made_by": made_by(kind),
        "executors": kind.executors,
        "alarm": kind.expected.is_alarm,
        "expected": str(kind.expected),
        "expected_classes": kind.expected.classes,
    }


def _print_drilled(drilled: Sequence[Drilled], *, as_json: bool) -> None:
    if as_json:
        print_json({"right": all_right(drilled), "drills": [one.as_dict() for one in drilled]})
        return
    if drilled:
        out.print(drilled_table(drilled))
    print_lines(problem_lines(drilled))
