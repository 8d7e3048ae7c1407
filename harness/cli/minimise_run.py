"""`matrix minimise RUN --over data|steps|shape`: how little of a failed run still fails."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from harness.base.durations import span
from harness.base.errors import UnknownNameError, UserError
from harness.base.wording import many, percent
from harness.campaign.controls.shrink import Over, failed_run, require_failed, require_shrinkable
from harness.campaign.controls.shrink_over import Shrunk, shrink, shrinking_runs
from harness.campaign.run_one import open_bench_for
from harness.cli.explain import read_record, run_folder
from harness.cli.in_background import search_shown
from harness.cli.shared import Settings, known, print_json, print_lines
from harness.cli.workload_choice import bench_options
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.gpus.host_changes import host_of
from harness.matrix.variants import VARIANT, find_cell
from harness.matrix.workload_options import OWN_DATA


def cell_meant(settings: Settings, what: str, workload: str | None) -> tuple[str, Intent | None]:
    """Return the id of the cell that `what` names, directly or as the cell of a run, and what the run was to do.

    `workload` is the one that was given. It stands for that of a run which the matrix file no longer has; the second is
    then None, as for a cell.

    Raises:
        UserError: when `what` names neither a cell nor a run that failed, or nothing is known of what the run did.
    """
    cells = settings.matrix.cells
    if what in cells:
        return what, None
    try:
        record = read_record(run_folder(settings.results, what))
    except UserError as error:
        if isinstance(error, UnknownNameError) or get_close_matches(what, cells, n=1):
            known(what, cells, "cell or run")
        raise
    require_failed(record)
    intent = record.intent
    repeatable = intent.workload in (*settings.matrix.workloads, OWN_DATA)
    if not (repeatable or workload):
        what_ran = "a program of your own" if intent.program else f"workload {intent.workload}"
        raise UserError(
            f"{intent.run_id}: ran {what_ran} that the matrix file does not have; put it under `workloads:` "
            f"there, then give {intent.cell.partition(VARIANT)[0]} --workload NAME"
        )
    cell = known(intent.cell.partition(VARIANT)[0], cells, "cell")
    return cell, intent if repeatable else None


def minimise_run(
    settings: Settings, run: str, over: Over, max_runs: int, options: Mapping[str, Any], *, as_json: bool
) -> None:
    """Search, print the result, and exit with the command's status."""
    if run in settings.matrix.cells:
        raise UserError(f"{run} is a cell: --over {over} takes a run of it that failed; `matrix status {run}` has them")
    record = read_record(run_folder(settings.results, run))
    require_shrinkable(record, over)
    for name in ("workload", "lookback"):
        if options[name] is not None:
            raise UserError(f"--{name}: a run is repeated with its own; leave it out")
    intent = record.intent
    cell = find_cell(settings.matrix, intent.cell)
    if cell is None:
        raise UserError(f"{intent.run_id}: the matrix file no longer has its cell {intent.cell}")
    if intent.host.machine != host_of(settings.results, settings.root).machine:
        raise UserError(f"{intent.run_id}: ran on another host; minimise it there")
    failed = failed_run(record, cell, dict(settings.matrix.workloads), options["data"])
    chosen = {**options, "data": failed.data, "executor": options["executor"] or intent.executor}
    bench, _ = open_bench_for(bench_options(settings, chosen), [cell], failed.workload)
    with search_shown(settings, watched="") as display:
        took = span(record.seconds)
        display.notice(f"{intent.run_id} took {took}; at most {many(max_runs, 'run')} of it or of parts of it follow")
        runs = shrinking_runs(over, bench, failed, max_runs, display)
        # They have a results folder of their own.
        display.command = settings.invocation.in_results(runs.bench.results.folder).command
        found = shrink(over, runs)
    again = next_command(settings, record, found, max_runs, options)
    if as_json:
        plain = {name: value for name, value in asdict(found).items() if name != "options"}
        places = {"results": str(found.results), "file": str(found.file) if found.file else None}
        print_json({"run": intent.run_id, **plain, **places, "options": dict(found.options), "next": again})
    else:
        print_lines([*shrunk_lines(record, found), f"Next: {again}"])
    sys.exit(1 if found.conclusion == "not-enough-runs" else 0)


def shrunk_lines(record: Record, found: Shrunk) -> Iterator[str]:
    """Yield the result of a search as sentences; the answer comes last."""
    run_id, failed = record.intent.run_id, record.ended
    runs = made = many(found.runs, "run")
    if found.others:
        made += f"; {found.others} of them failed in another way, or could not run with so little"
    yield f"{made}, in {found.results}"
    if found.options:
        yield f"It takes {', '.join(f'`{name}: {value}`' for name, value in found.options)} in its workload."
    if found.file:
        yield f"That part of the data is {found.file}"
    yield from found.notes
    if found.smallest and found.conclusion == "found":
        rate = f", in about {percent(found.rate)} of runs" if found.rate is not None else ""
        yield f"{run_id}: still {failed} with {found.smallest}, of {found.whole}{rate}."
    elif found.conclusion == "not-localised":
        yield f"{run_id}: {failed} with any of {found.whole}: it is not the data."
    elif found.conclusion == "not-seen-again":
        yield f"{run_id}: {failed} was not seen again, with {found.whole}."
    else:
        far = f" It fails with {found.smallest}, but less may do." if found.smallest else ""
        yield f"{run_id}: {runs} did not suffice to say how little of {found.whole} still fails.{far}"


def next_command(settings: Settings, record: Record, found: Shrunk, max_runs: int, options: Mapping[str, Any]) -> str:
    """Return the command that the user should type next."""
    intent, command = record.intent, settings.invocation.command
    given = [word for name in ("python", "executor") if options[name] for word in (f"--{name}", str(options[name]))]
    if found.conclusion == "not-enough-runs":
        return command("minimise", intent.run_id, "--over", found.over, "--max-runs", str(2 * max_runs), *given)
    if found.file:
        lookback = ("--lookback", str(intent.options["lookback"])) if "lookback" in intent.options else ()
        named = ("--workload", intent.workload) if intent.workload in settings.matrix.workloads else ()
        return command("run-cell", intent.cell, *named, *lookback, "--data", str(found.file), *given)
    if found.conclusion == "not-seen-again":
        return command("status", intent.cell)
    if found.over == "shape":
        return command("report-bug", intent.run_id)
    other = "shape" if found.over == "steps" else "steps"
    return command("minimise", intent.run_id, "--over", other, *given)
