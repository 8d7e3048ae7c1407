"""`matrix status`: what the records show."""

from collections.abc import Iterable, Iterator

import click

from harness.base.errors import UserError
from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json, print_lines, warn
from harness.evidence.index import Index, Row
from harness.evidence.records import Results
from harness.evidence.verdicts import of_results
from harness.evidence.verdicts.scope import is_simulated_scope
from harness.evidence.verdicts.verdict import Verdict
from harness.host.fingerprint import machine_of
from harness.matrix.variants import VARIANT
from harness.registry.tags.promote import is_about
from harness.registry.tags.promotions import KnownGood, read_moves, standing_tags
from harness.screen import tables


@click.command()
@click.argument("cell", required=False)
@click.option("--without-imported", is_flag=True, help="Leave out runs that came with `matrix import`.")
@click.option(
    "--variants", is_flag=True, help="Show cells too that `minimise` and `train` derived from others (CELL~...)."
)
@as_json
@pass_settings
def status(settings: Settings, cell: str | None, without_imported: bool, variants: bool, as_json: bool) -> None:
    """Say what the records show: a verdict for every cell that was run, or every run of one CELL.

    The pass rate lies in the interval shown (each end for itself at the confidence of the matrix file), however often
    one looks. Runs with injected faults, interrupted or discounted ones and host faults never count. What a
    known-good tag was given to on this host is marked `tagged`; `matrix tags` says more.
    """
    results, everything = settings.results, Index(settings.results).rows()
    tags = _tags(results)
    rows = [row for row in everything if not (without_imported and row.imported)]
    if cell is not None:
        rows = [row for row in rows if row.cell == cell]
        if not rows:
            known(cell, settings.matrix.cells, "cell")
        if as_json:
            tag_of = {run_id: one.tag for one in tags for run_id in one.run_ids}
            print_json(
                [
                    {**row.as_dict(), "tag": tag_of.get(row.run_id), "simulated": is_simulated_scope(row.scope)}
                    for row in rows
                ]
            )
        else:
            out.print(tables.runs_table(rows))
            print_lines(list(_resting(tags, rows)))
        return
    verdicts = of_results.verdicts_on(rows, results, settings.matrix)
    if as_json:
        print_json([{**of_results.describe_verdict(verdict), "tag": _tag_of(verdict, tags)} for verdict in verdicts])
        return
    shown = [verdict for verdict in verdicts if variants or VARIANT not in verdict.cell]
    beside = of_results.beside_the_verdicts(everything, results, machine_of(settings.root))
    if len(shown) < len(verdicts):
        beside.append(
            f"{len(verdicts) - len(shown)} verdicts on variants of cells are not shown; --variants shows them"
        )
    warn(beside)
    if shown or not beside:
        out.print(tables.verdicts_table(shown, tags) if shown else "No records yet; `matrix run` makes some.")


def _tags(results: Results) -> list[KnownGood]:
    """Return what stands on this host. Where that cannot be known the verdicts are shown all the same."""
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
            yield f"{evidence.tag} rests on {count} of these runs; `matrix tags` says where it may be used"
