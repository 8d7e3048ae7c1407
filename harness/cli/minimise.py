"""The commands that find which variables and cells make a difference: `matrix minimise` and `matrix compare`."""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from harness.base.errors import UserError
from harness.base.wording import many, some_of
from harness.campaign.controls.comparisons import add_runs, describe_minimum, minimise_cell
from harness.campaign.controls.isolate import last_failure
from harness.campaign.run_one import open_bench_for
from harness.cli.as_it_failed import as_it_failed, work_repeated
from harness.cli.completion import complete_cells, complete_cells_and_runs
from harness.cli.in_background import search_shown
from harness.cli.minimise_run import cell_meant, minimise_run
from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json
from harness.cli.workload_choice import bench_options, chosen_workload, workload_options
from harness.evidence.files.run_files import Intent
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.index import Index
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import counts_of
from harness.host.fingerprint import machine_of
from harness.matrix.cells import Cell
from harness.matrix.variants import control_of, variable_names
from harness.report.words import at_most
from harness.screen.fitted import print_sentences
from harness.search.compare import compare
from harness.search.compare_across import AXES, Axis, compare_across
from harness.search.minimise import FEWEST_RUNS, Minimum

if TYPE_CHECKING:
    from harness.campaign.answered import Command

MAX_RUNS = 300
LISTED = 6
MinimiseOver = Literal["variables", "data", "steps", "shape"]


@click.command("minimise")
@click.argument("what", shell_complete=complete_cells_and_runs, metavar="CELL|RUN")
@click.option(
    "--over",
    type=click.Choice(["variables", "data", "steps", "shape"]),
    default="variables",
    show_default=True,
    help="What to reduce; shape: of batch and model.",
)
@workload_options
@click.option(
    "--max-runs",
    type=click.IntRange(min=1),
    default=MAX_RUNS,
    show_default=True,
    help=f"Most runs to make; for variables {FEWEST_RUNS} or more.",
)
@as_json
@pass_settings
def minimise_command(
    settings: Settings, /, what: str, over: MinimiseOver, max_runs: int, as_json: bool, **options: Any
) -> None:
    """Find out which variables matter, or how little of a failed run still fails.

    Of CELL: which variables of its preset make runs pass, or fail. Of a failed RUN: how little of it still fails.

    \b
    matrix minimise rocm6.3-torch2.9.1-notes-stable    # which variables?
    matrix minimise latest --over data                 # which sessions?
    matrix minimise latest --over steps                # how many steps?
    matrix minimise latest --over shape                # what batch and model?

    RUN is as for `matrix explain`. It is repeated in its cell with ever less of its workload; a run that fails in
    another way does not count as failing. These runs are kept in results/minimise: they are no evidence of a cell.

    Variables: without --workload, the runs do what RUN, or the last failure of CELL or its control, did on a GPU; a
    training on your own data is repeated with few epochs. Runs with the whole preset and with nothing set first show
    whether there is any effect. Then the search screens the variables, shrinks the set until nothing more can be left
    out, and confirms the rest with new runs. Runs need not always pass or always fail. A smaller effect takes more
    runs: a difference of a half takes about a hundred, one of a tenth several hundred.

    The same command continues an interrupted search, also with a larger --max-runs.

    Exit status: 0 when the answer was found, also when it is that no difference shows; 1 when the runs did not suffice,
    130 after Ctrl-C.
    """  # noqa: D301 - click needs the character itself
    if over != "variables":
        minimise_run(settings, what, over, max_runs, options, as_json=as_json)
        return
    if max_runs < FEWEST_RUNS:
        raise UserError(f"--max-runs {max_runs}: too few to show a difference; give {FEWEST_RUNS} or more")
    cell, failed = cell_meant(settings, what, options["workload"])
    chosen = settings.matrix.cells[cell]
    control = control_of(chosen, settings.matrix)
    failed = failed or _last_failure(settings, (chosen, control))
    if failed and not options["workload"]:
        workload, options = as_it_failed(settings, failed, options)
    else:
        workload, failed = chosen_workload(settings, "default", options), None
    bench, placed = open_bench_for(bench_options(settings, options), [chosen], workload)
    with search_shown(settings) as display:
        display.notice(f"runs of {work_repeated(workload, failed)}; --workload names another")
        found = minimise_cell(bench, placed[cell], workload, control, max_runs, display)
    if as_json:
        print_json(describe_minimum(chosen, control, found))
    else:
        print_sentences(out, minimum_lines(chosen, control, found))
        if following := _command_after(settings, chosen, control, found):
            from harness.screen.answer import print_next  # noqa: PLC0415 - it would delay each --help

            print_next(out, following)
    sys.exit(1 if found.conclusion == "not-enough-runs" else 0)


def _command_after(settings: Settings, cell: Cell, control: Cell, found: Minimum) -> "Command | None":
    from harness.campaign.answered import Command  # noqa: PLC0415 - it would delay each --help

    command = settings.invocation.command
    if found.conclusion == "no-difference" and found.with_all.passes < found.with_all.runs:
        why = "tells whether its stack, a GPU or the host is at fault, as its preset is not"
        return Command(command=command("isolate", cell.id), why=why)
    if found.conclusion != "found":
        return None
    if found.effect == "harms":
        return Command(command=command("run", control.id), why="runs the same stack without these variables")
    return Command(command=command("run", cell.id), why="shows how reliably the whole preset trains")


def _last_failure(settings: Settings, cells: Iterable[Cell]) -> Intent | None:
    """Return the newest run of these cells that failed here in a way that a variable may change."""
    machine = machine_of(settings.root)
    found = (last_failure(settings.results, machine, settings.matrix, cell.id, of_search=False) for cell in cells)
    return max(filter(None, found), key=lambda failed: failed.started, default=None)


@click.command("compare")
@click.argument("cells", nargs=-1, shell_complete=complete_cells, metavar="CELL CELL...")
@click.option(
    "--across",
    type=click.Choice(list(AXES)),
    help="Compare the runs of each CELL (default: all) from before and after this changed on their host.",
)
@workload_options
@click.option("--runs", type=click.IntRange(min=1), help="First run each cell until this many of its runs count.")
@as_json
@pass_settings
def compare_command(
    settings: Settings, /, cells: tuple[str, ...], across: Axis | None, runs: int | None, as_json: bool, **options: Any
) -> None:
    """Test whether the first CELL differs from each of the others in how often its runs pass.

    Only runs with the same workload, kind of host, executor and devices are compared. It is Fisher's exact test, with
    Holm's correction when several comparisons are made. The test is valid only for numbers of runs that were chosen in
    advance: choose --runs once, not until the result suits you.

    \b
    matrix compare cpu-plain cpu-no-sdma --runs 20
    matrix compare --across kernel                  # "6.12: 20 of 20; 6.18: 3 of 9"; nothing is run

    Exit status: 0 when there is an answer, whatever it is, 130 after Ctrl-C.
    """  # noqa: D301 - click needs the character itself
    if across:
        _compare_across(settings, across, cells, runs, as_json=as_json)
        return
    if len(set(cells)) < max(2, len(cells)):
        rows = Index(settings.results_to_read).rows()
        ran = list(dict.fromkeys(row.cell for row in rows if row.can_be_evidence and row.cell in settings.matrix.cells))
        there = f"there are runs of {some_of(ran, LISTED)}" if ran else "there are no runs yet"
        pair = f"{ran[0]} {ran[1]}" if len(ran) > 1 else "cpu-plain cpu-no-sdma --runs 20"
        raise UserError(f"compare: name two different cells or more; {there}: `matrix compare {pair}`")
    chosen = [settings.cell(cell) for cell in cells]
    of_workload = None
    if runs is not None:
        workload = chosen_workload(settings, "default", options)
        bench, placed = open_bench_for(bench_options(settings, options), chosen, workload)
        with search_shown(settings, what="comparison") as display:
            display.notice(f"runs of workload {workload.name}; --workload names another")
            of_workload = add_runs(bench, placed, workload, runs, display)
    host = host_of(settings.results, settings.root)
    verdicts = of_results.verdicts(settings.results_to_read, settings.matrix, host, pooled=False)
    counted = [one for one in verdicts if of_workload in (None, one.workload_hash)]
    compared = compare(counted, cells[0], cells[1:])
    if not compared:
        makes = f"`matrix compare {' '.join(cells)} --runs 20` makes some"
        if not host.gpus and (unable := [one.id for one in chosen if one.stack.accelerator == "rocm"]):
            makes = f"{unable[0]} needs an AMD GPU, and this host has none; `matrix import` adds runs of another host"
        raise UserError(f"no runs of {cells[0]} and another that can be compared with each other; {makes}")
    if as_json:
        print_json({"comparisons": [one.plain for one in compared]})
    else:
        print_sentences(out, [one.in_words for one in compared])


def _compare_across(settings: Settings, axis: Axis, cells: tuple[str, ...], runs: int | None, *, as_json: bool) -> None:
    if runs is not None:
        raise UserError("compare --across: runs from before the change cannot be made now; leave --runs out")
    for cell in cells:
        known(cell, settings.matrix.cells, "cell")
    rows = [row for row in Index(settings.results_to_read).rows() if row.can_be_evidence]
    compared = compare_across(rows, counts_of(settings.results), axis, cells, settings.matrix.verdicts.confidence)
    if as_json:
        print_json({"across": axis, "comparisons": [one.plain for one in compared]})
    elif compared:
        print_sentences(out, [one.in_words for one in compared])
    else:
        of_cells = f" of {', '.join(cells)}" if cells else ""
        raise UserError(
            f"no runs{of_cells} with another {axis.removesuffix('s')} that can be compared: of the same cell, "
            "environment, workload and machine; `matrix status` shows what there is"
        )


def minimum_lines(cell: Cell, control: Cell, found: Minimum) -> Iterator[str]:
    """Yield the result of a search as sentences."""
    total = len(variable_names(cell.preset))
    pairs = f"{found.with_all.in_words} with {_all(total)}, {found.with_none.in_words} with none"
    names = ", ".join(sorted(found.variables))
    if found.effect is None:
        said = "no difference shown" if found.conclusion == "no-difference" else "not enough runs to show a difference"
        yield f"{cell.id}: {said}: {pairs}; the pass rates differ by {at_most(found.largest_difference)} at most."
    else:
        verb = "makes runs pass" if found.effect == "helps" else "makes runs fail"
        yield f"{cell.id}: the preset {verb}: {pairs} ({control.id})."
    if found.conclusion == "found":
        only = "Set together, without the others" if len(found.variables) > 1 else "Alone"
        yield f"What matters: {names}. {only}, in fresh runs: {found.confirmed.in_words}."
        for name, runs in found.without.items():
            yield f"  without {name}: {runs.in_words}"
        if found.rest_too:
            yield "The other variables do the same without these: leave these out of the preset and minimise again."
        elif found.rest_too is None and len(found.variables) < total:
            yield "Whether the other variables do the same without these was not seen."
    elif found.effect:
        yield f"Not enough runs: {found.runs} were spent, and the last stage begun is `{found.reached}`."
        if len(found.variables) < total:
            yield f"So far, but not confirmed: {names}."
    if found.conclusion == "not-enough-runs":
        yield "The same command with a larger --max-runs continues from here."
    yield f"{many(found.runs, 'run')}."


def _all(variables: int) -> str:
    return "its variable" if variables == 1 else f"all {variables} variables"
