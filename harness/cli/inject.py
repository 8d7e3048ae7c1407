"""`matrix inject`: injects faults on purpose."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from harness.base.durations import span
from harness.base.errors import UserError
from harness.base.wording import many
from harness.cli.campaign_choice import MOST_REPEATS
from harness.cli.in_background import through_closed_terminal
from harness.cli.shared import (
    INTERRUPTED,
    Settings,
    as_json,
    err,
    executor_option,
    known,
    out,
    pass_settings,
    print_json,
    print_lines,
)
from harness.evidence.records import Results
from harness.faults.inject import inject_all
from harness.faults.injection import Injection, all_as_expected
from harness.faults.kinds import KINDS, FaultKind
from harness.faults.table import injected_by, injection_line, injection_table, kinds_table, problem_lines
from harness.faults.target import make_target
from harness.matrix.stacks import ExecutorName
from harness.screen.fitted import print_table, wide_option
from harness.screen.steps import Steps

FAULTS_FOLDER = "faults"
# Assumed time of a fault with its healthy run, in seconds: two short trainings; detecting a hang takes as long again.
ASSUMED_SECONDS = 30.0


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...")
@executor_option("In containers or as processes (default: containers where a Docker engine answers).")
@click.option("--all", "every", is_flag=True, help="Inject every kind.")
@click.option(
    "--repeats", type=click.IntRange(1, MOST_REPEATS), default=1, show_default=True, help="How often each is injected."
)
@click.option("--list", "only_list", is_flag=True, help="Print the kinds; inject none.")
@wide_option
@as_json
@pass_settings
def inject(
    settings: Settings,
    kinds: tuple[str, ...],
    executor: ExecutorName | None,
    every: bool,
    repeats: int,
    only_list: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """Inject faults into real runs, and check that each is detected, explained and survived.

    Each is a short training on the CPU with one fault, and a healthy run after it.
    `survived` means: there is a record, nothing was left behind, and the healthy run completed. The records are
    in RESULTS/faults; they are evidence of nothing but the harness.

    Exit status: 0 when all injected faults ended as expected, 1 when one did not, 130 after Ctrl-C.
    """
    if cells := [name for name in kinds if name in settings.matrix.cells]:
        raise UserError(
            f"{cells[0]} is a cell: each fault is injected into a short training on the CPU; name kinds of fault, "
            "which --list prints"
        )
    chosen = _chosen(() if every else kinds)
    if only_list:
        _print_kinds(chosen, wide=wide, as_json=as_json)
        return
    count = len(chosen) * repeats
    takes = f"{many(count, 'fault')}, each with a healthy run after it: about {span(count * ASSUMED_SECONDS)}"
    if bool(kinds) == every:
        if not as_json:
            _print_kinds(chosen, wide=wide, as_json=False)
        raise UserError(f"say what to inject: KINDs, or --all ({takes})")
    err.print(f"{takes} (assumed: 30 s each)")
    injections: list[Injection] = []
    interrupted = False
    faults = Results(settings.results.folder / FAULTS_FOLDER)
    with through_closed_terminal(settings, what="test", watched=""):
        try:
            with Steps(err) as steps:
                target = make_target(faults, settings.matrix, executor, steps.step, settings.root)
                for one in inject_all(chosen, target, repeats, steps.step):
                    injections += [one]
                    err.print(injection_line(one), soft_wrap=True)
        except KeyboardInterrupt:
            interrupted = True
        _print_injections(injections, wide=wide, as_json=as_json)
        records = [one.record for one in injections if one.record]
        made = len(records)
        if interrupted or not made:
            err.print(f"{'Interrupted: ' if interrupted else ''}{made} of {count} faults were injected.")
        if made:
            explain = settings.invocation.in_results(faults.folder).command("explain", records[-1].intent.run_id)
            err.print(f"Why the last one ended as it did: {explain}", soft_wrap=True, highlight=False, markup=False)
    sys.exit(INTERRUPTED if interrupted else 0 if all_as_expected(injections) else 1)


def _chosen(names: Sequence[str]) -> list[FaultKind]:
    by_name = {kind.name: kind for kind in KINDS}
    return [by_name[known(name, by_name, "kind of fault")] for name in names] or list(KINDS)


def _print_kinds(kinds: Sequence[FaultKind], *, wide: bool, as_json: bool) -> None:
    if as_json:
        print_json({"kinds": [_describe(kind) for kind in kinds]})
    else:
        print_table(
            out, kinds_table(kinds), ("executors", "injected by", "explained as", "expected"), "what happens", wide=wide
        )


def _describe(kind: FaultKind) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "what": kind.what,
        "injected_by": injected_by(kind),
        "executors": kind.executors,
        "alarm": kind.expected.is_alarm,
        "expected": str(kind.expected),
        "expected_classes": kind.expected.classes,
    }


def _print_injections(injections: Sequence[Injection], *, wide: bool, as_json: bool) -> None:
    if as_json:
        print_json({"as_expected": all_as_expected(injections), "injections": [one.as_dict() for one in injections]})
        return
    if injections:
        print_table(
            out, injection_table(injections), ("seconds to find", "survived", "explained", "expected"), "", wide=wide
        )
    print_lines(problem_lines(injections))
