"""`matrix status`: what the records show."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.under_way import under_way
from harness.cli.completion import complete_cells
from harness.cli.shared import (
    FiniteRange,
    Settings,
    as_json,
    as_typed,
    err,
    known,
    out,
    pass_settings,
    print_json,
    warn,
)
from harness.evidence.by_node import NodeRuns, by_node
from harness.evidence.gpus.host_changes import host_of
from harness.evidence.index import Index
from harness.evidence.isolations import FaultIsolation, read_isolations, sentences
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.counting import Counts, counts_of
from harness.evidence.verdicts.distinguishing import ambiguous_groups, families_apart, what_differs
from harness.evidence.verdicts.expectation import expectation_of_totals
from harness.evidence.verdicts.recommend import strength
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict
from harness.evidence.verdicts.words import TIERS_IN_WORDS, work_in_words
from harness.host.facts import HostFacts
from harness.host.fingerprint import training_gpus
from harness.matrix.cells import Matrix
from harness.matrix.variants import VARIANT
from harness.registry.tags.promote import is_about
from harness.registry.tags.promotions import KnownGood, read_moves, standing_tags
from harness.screen import tables
from harness.screen.fitted import print_folded, print_sentences, print_table, wide_option
from harness.training.state import unfinished_trainings

if TYPE_CHECKING:
    from harness.evidence.files.run_files import Record

LEGEND = "above: lower bounds; a start: one step trained; MTBF: mean time between failures"


@click.command()
@click.argument("cell", required=False, shell_complete=complete_cells)
@click.option("--without-imported", is_flag=True, help="Leave out runs that came with `matrix import`.")
@click.option("--nodes", is_flag=True, help="Show what the nodes of a cluster did, by host kind.")
@click.option(
    "--variants", is_flag=True, help="Also show cells that `minimise` and `train` derived from others (CELL~...)."
)
@click.option(
    "--expect-hours",
    type=FiniteRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="HOURS",
    help="Print what a training of this many hours can expect from the cells that passed.",
)
@wide_option
@as_json
@pass_settings
def status(
    settings: Settings,
    cell: str | None,
    without_imported: bool,
    nodes: bool,
    variants: bool,
    expect_hours: float,
    wide: bool,
    as_json: bool,
) -> None:
    """Say what the records show: a verdict for every cell that was run, or every run of one CELL.

    `starts above` and `MTBF above` are lower bounds of the share of starts that succeed and of the mean time between
    failures (each at the confidence of the matrix file); they hold however often you look. Every run that was begun
    counts, host faults too, except runs with an injected fault, runs that Ctrl-C ended while they progressed, and runs
    that `matrix strike` took out. A verdict that gave a known-good tag on this host is marked `tagged`; `matrix tags`
    says more.
    """
    results = settings.results_to_read
    everything = Index(results).rows()
    counts = counts_of(results, everything)
    tags = _tags(results)
    rows = [row for row in everything if not (without_imported and row.imported)]
    if cell is not None:
        rows = [row for row in rows if row.cell == cell]
        if not rows:
            if cell and any(row.run_id.startswith(cell) for row in everything):
                raise UserError(f"{cell} is a run, not a cell; `matrix explain {cell}` says how it ended")
            known(cell, settings.matrix.cells, "cell")
            if not as_json:
                of_others = any(row.cell == cell for row in everything)
                none = f"No run of {cell} is of this host" if of_others else f"No run of {cell} yet"
                out.print(as_typed(f"{none}; `matrix run {cell}` makes one."))
                return
        _show_runs(rows, counts, tags, results, wide=wide, as_json=as_json)
        return
    of_nodes = by_node(rows, counts) if any(row.node for row in rows) else []
    if nodes:
        _show_nodes(of_nodes, as_json=as_json)
        return
    host = host_of(results, settings.root)
    verdicts = of_results.verdicts_on(rows, settings.matrix, counts, host)
    unfinished = unfinished_trainings(results, host.machine)
    if as_json:
        confidence = settings.matrix.verdicts.confidence
        told = [(one, expectation_of_totals(one.totals, expect_hours, confidence)) for one in verdicts]
        described = [
            {**of_results.describe_verdict(one), "tag": _tag_of(one, tags), "expectation": expected.plain}
            for one, expected in told
        ]
        print_json({"verdicts": described, "unfinished_trainings": [one.brief for one in unfinished]})
        return
    shown = [verdict for verdict in verdicts if variants or VARIANT not in verdict.cell]
    machine = host.machine
    # The verdicts name running campaigns only after their first run; before that nothing else mentions one.
    beside = [*_begun(settings), *of_results.left_out_of_verdicts(everything, results, machine)]
    answers = [one for one in read_isolations(results) if one.machine == machine]
    beside += [one.in_words for one in of_nodes if one.unlike_others]
    beside += [*of_results.changes_in_words(shown), *sentences(answers), *(one.in_words for one in unfinished)]
    more = of_results.changed_kind_in_words(rows, host), _hint(everything, counts, settings.matrix, host, answers)
    beside += filter(None, more)
    if len(shown) < len(verdicts):
        beside.append(
            f"not shown: {many(len(verdicts) - len(shown), 'verdict')} on variants of cells; --variants shows them"
        )
    beside += dict.fromkeys(f"{run} was struck out by hand: {why}" for one in shown for run, why in one.struck.items())
    for line in beside:
        print_folded(err, as_typed(f"matrix: {line}"))
    if shown or not beside:
        if shown:
            _print_verdicts(settings, shown, tags, host.kind, wide=wide)
        else:
            out.print("No records yet.")
        for line in _expectations(shown, expect_hours, settings.matrix.verdicts.confidence):
            print_folded(out, line)
        _print_following(settings, everything, counts, rows, verdicts, tags, host)


def _begun(settings: Settings) -> Iterator[str]:
    watch = settings.invocation.command("watch")
    return (one.in_words(watch) for one in under_way(settings.results) if one.doing)


def _show_runs(
    rows: Sequence[Row], counts: Counts, tags: Sequence[KnownGood], results: Results, *, wide: bool, as_json: bool
) -> None:
    if as_json:
        tag_of = {run_id: one.tag for one in tags for run_id in one.run_ids}
        runs = [
            {
                **row._asdict(),
                "counts_as": counts[row.run_id].counts_as,
                "why_counted_so": counts[row.run_id].why,
                "tag": tag_of.get(row.run_id),
                "simulated": is_simulated_scope(row.scope),
            }
            for row in rows
        ]
        print_json({"runs": runs})
    else:
        table = tables.runs_table(rows, counts, families_apart(rows, partial(_record, results)))
        print_table(out, table, tables.run_columns_to_leave_out(rows), "detail", wide=wide)
        print_sentences(out, _resting(tags, rows))


def _show_nodes(nodes: Sequence[NodeRuns], *, as_json: bool) -> None:
    if as_json:
        print_json({"nodes": [asdict(one) for one in nodes]})
    elif nodes:
        print_table(out, tables.nodes_table(nodes), (), "note", wide=True)
    else:
        out.print(as_typed("No runs on nodes yet; `matrix run --on slurm` makes some."))


def _expectations(verdicts: Iterable[Verdict], hours: float, confidence: float) -> Iterator[str]:
    """Yield what a training can expect of each cell with a tier of at least `candidate`."""
    for one in verdicts:
        if one.tier in ("candidate", "good", "known-good") and not one.stale:
            expected = expectation_of_totals(one.totals, hours, confidence)
            yield f"{one.cell} ({one.scope}, {work_in_words(one)}): {expected.in_words}"


def _print_verdicts(
    settings: Settings, shown: list[Verdict], tags: Sequence[KnownGood], here: str, *, wide: bool
) -> None:
    def usefulness(one: Verdict) -> tuple[bool, bool, bool, int, float, float]:
        here_now = not one.stale and one.host_kind == here
        return one.runs > 0, here_now, one.device != "cpu", *strength(one.tier, one.mtbf_low, one.low)

    # The best comes first, as in the answer; equal ones are in the order of the matrix file.
    places = {name: place for place, name in enumerate(settings.matrix.cells)}
    shown.sort(key=lambda one: places.get(one.cell, len(places)))
    shown.sort(key=usefulness, reverse=True)
    table = tables.verdicts_table(shown, tags, _told_apart(shown, settings.results), here)
    others = tables.columns_to_leave_out(shown)
    print_table(out, table, others, "why" if "workload" in others else "workload", wide=wide)
    print_sentences(out, [LEGEND, TIERS_IN_WORDS])


def _told_apart(shown: Sequence[Verdict], results: Results) -> dict[str, str]:
    """Return what distinguishes verdicts on the same cell and workload, by the ids of their newest runs."""
    told: dict[str, str] = {}
    for together in ambiguous_groups(shown):
        intents = {one.last: record.intent for one in together if (record := _record(results, one.last))}
        told |= what_differs(together, intents)
    return told


def _record(results: Results, run_id: str) -> "Record | None":
    """Return the record of a run for display; None for a damaged one, which is named beside the verdicts."""
    with suppress(UserError):
        record = results.record(run_id)
        return record and results.folder_of(run_id).for_display(record)
    return None


def _print_following(
    settings: Settings,
    everything: Sequence[Row],
    counts: Counts,
    rows: Sequence[Row],
    verdicts: Sequence[Verdict],
    tags: Sequence[KnownGood],
    host: HostFacts,
) -> None:
    """Print the command to type next, which is the one that the report names."""
    # Imported here because the modules that explain a choice take time to import.
    from harness.campaign.answered import last_answer  # noqa: PLC0415
    from harness.report.continuation import continuation  # noqa: PLC0415
    from harness.report.reader import Reader  # noqa: PLC0415
    from harness.report.sections.judged_runs import judged_runs  # noqa: PLC0415
    from harness.report.sections.of_host import of_host, record_reader  # noqa: PLC0415
    from harness.screen.answer import print_next  # noqa: PLC0415

    results, matrix = settings.results, settings.matrix
    last = last_answer(results, host.machine, everything)
    last = replace(last, next_command=continuation(results, host.machine, settings.invocation, everything, last))
    judge = partial(of_results.verdicts_on, matrix=matrix, counts=counts, host=host)
    runs = judged_runs(rows, matrix, counts, record_reader(results, settings.invocation), verdicts, judge)
    known = of_host(runs, tags, Reader(time.time(), host.kind, settings.invocation, last))
    print_next(out, known.steps[0])


def _hint(
    rows: Iterable[Row], counts: Counts, matrix: Matrix, host: HostFacts, answers: Sequence[FaultIsolation]
) -> str | None:
    """Return how to find what is at fault in this machine's runs; None when none of its GPU runs failed."""
    here = [row for row in rows if row.machine == host.machine and not row.imported]
    if all(row.outcome == "completed" or row.device == "cpu" for row in here):
        return None
    # Imported here because the modules that explain failures take time to import.
    from harness.campaign.controls.isolate import hint  # noqa: PLC0415

    return hint(here, counts, matrix, len(training_gpus(host)), answers)


def _tags(results: Results) -> list[KnownGood]:
    """Return the tags in force on this host; if they cannot be read, warn, and show the verdicts without them."""
    try:
        return list(standing_tags(read_moves(results)).values())
    except UserError as error:
        warn([str(error)])
        return []


def _tag_of(verdict: Verdict, tags: Iterable[KnownGood]) -> str | None:
    return next((one.tag for one in tags if is_about(one, verdict)), None)


def _resting(tags: Iterable[KnownGood], rows: Iterable[Row]) -> Iterator[str]:
    ids = {row.run_id for row in rows}
    for evidence in tags:
        if count := len(ids.intersection(evidence.run_ids)):
            yield as_typed(f"{evidence.tag} rests on {count} of these runs; `matrix tags` says where it may be used")
