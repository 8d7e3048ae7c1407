"""`matrix isolate`: tells whether the cell, its stack, a GPU or the host is at fault."""

import sys
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from harness.base.durations import span
from harness.base.errors import UserError
from harness.campaign.controls.isolate import isolate_fault, last_failure, plain_cells, question_about, suspect_of
from harness.campaign.run_one import open_bench_for
from harness.cli.as_it_failed import as_it_failed, work_repeated
from harness.cli.completion import complete_cells
from harness.cli.in_background import search_shown
from harness.cli.records import report_may_fail, report_on
from harness.cli.shared import Settings, as_json, out, pass_settings, print_json
from harness.cli.workload_choice import DEFAULT_SELECTION, bench_options, chosen_workload, workload_options
from harness.evidence.index import Index
from harness.host.fingerprint import machine_of
from harness.matrix.workload_options import OWN_DATA
from harness.screen.fitted import print_sentences
from harness.search.fault_isolation import MOST_RUNS

if TYPE_CHECKING:
    from harness.campaign.answered import Command
    from harness.evidence.isolations import FaultIsolation


@click.command("isolate")
@click.argument("cell", shell_complete=complete_cells)
@click.option("--other", help="A plain cell of another stack (default: the one that completed most often here).")
@workload_options
@click.option("--max-runs", type=click.IntRange(min=1), default=MOST_RUNS, show_default=True, help="Most runs to make.")
@as_json
@pass_settings
def isolate_command(
    settings: Settings, /, cell: str, other: str | None, max_runs: int, as_json: bool, **options: Any
) -> None:
    """Tell whether failures of CELL are its own, its stack's, a GPU's or the host's.

    Without --workload, the runs do what CELL's last such failure did: its workload, strategy and data. A training on
    your own data is repeated with few epochs.

    It alternates new runs of CELL, of its stack's plain cell and of another stack's plain cell, each on the GPU where
    CELL failed and on another GPU. The failures that raised the question are not counted in the answer. The probability
    of naming a wrong cause is at most .05. With pass rates of .95 and .5 it takes about thirty runs. These runs count
    like all others; the answer changes how failures are described, but no count.

    The same command continues an interrupted search, also with a larger --max-runs; after new failures of CELL it
    starts a new one.

    Exit status: 0 when the answer was found, also when it is that nothing fails; 1 when the runs did not suffice, 130
    after Ctrl-C.
    """
    matrix, results = settings.matrix, settings.results
    chosen = settings.cell(cell)
    others = [settings.cell(other)] if other else []
    if any(one.stack == chosen.stack or one.preset.name != "plain" for one in others):
        raise UserError(f"--other {other}: give a plain cell of another stack than {chosen.stack.name}")
    failed = None if options["workload"] else last_failure(results, machine_of(settings.root), matrix, cell)
    if failed:
        workload, options = as_it_failed(settings, failed, options)
    else:
        workload = chosen_workload(settings, DEFAULT_SELECTION, options)
    place = bench_options(settings, options)
    bench, _ = open_bench_for(place, [chosen, *others], workload)
    rows = Index(results).rows()
    stacks = others or plain_cells(matrix, rows, bench.host.kind)
    took = [row.seconds for row in rows if row.workload == workload.name and row.outcome == "completed"]
    each = f"of about {span(median(took))} each" if took else f"each of {span(workload.time_limit)} at most"
    if failed and failed.workload == OWN_DATA:
        each = "each as long as these epochs take"
    suspect = suspect_of(cell, failed.workload if failed else workload.name, bench)
    question = question_about(suspect, matrix, workload, bench, stacks)
    what = f"{work_repeated(workload, failed)}; new runs {question.places_in_words}"
    with search_shown(settings) as display:
        display.notice(f"{what}; at most {max_runs}, {each}; --workload names another")
        answer = isolate_fault(bench, question, workload, display, max_runs)
    if as_json:
        print_json(answer.model_dump(mode="json", by_alias=True))
    else:
        from harness.screen.answer import print_next  # noqa: PLC0415

        print_sentences(out, [answer.sentence])
        if following := command_after(settings, answer, suspect.last):
            print_next(out, following)
    # Afterwards: an interrupted report costs no answer.
    with report_may_fail(after="search"):
        report_on(settings).write(settings.results)
    sys.exit(0 if answer.answered else 1)


def command_after(settings: Settings, answer: "FaultIsolation", failed: str) -> "Command | None":
    """Return the command to type after an answer; None where nothing is at fault or can be told.

    `failed`: the run that raised the question; empty without one.
    """
    from harness.campaign.answered import Command  # noqa: PLC0415 - at the start it would delay each --help

    command = settings.invocation.command
    if answer.cause == "cell":
        return Command(command=command("minimise", answer.cell), why="finds which variables of its preset matter")
    if answer.cause == "stack":
        if not failed:
            return None
        report = command("report-bug", failed)
        return Command(command=command("explain", failed), why=f"says what helps; `{report}` writes a report of it")
    if answer.cause:
        swap = "; if it finds nothing, swap the two cards, and isolate again" if "gpu" in answer.cause else ""
        return Command(command=command("doctor"), why=f"looks for what is wrong with this host and its GPUs{swap}")
    return None
