"""`matrix status`: what the records show."""

import click

from harness import overview, tables
from harness.cli_shared import Settings, as_json, known, out, pass_settings, print_json, warn
from harness.index import Index
from harness.variants import VARIANT


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
    one looks. Drills, interrupted and tainted runs and faults of the host never count.
    """
    results, everything = settings.results, Index(settings.results).rows()
    rows = [row for row in everything if not (without_imported and row.imported)]
    if cell is not None:
        rows = [row for row in rows if row.cell == cell]
        if not rows:
            known(cell, settings.matrix.cells, "cell")
        if as_json:
            print_json([row.as_dict() for row in rows])
        else:
            out.print(tables.runs_table(rows))
        return
    verdicts = overview.verdicts_on(rows, results, settings.matrix)
    if as_json:
        print_json([overview.describe_verdict(verdict) for verdict in verdicts])
        return
    shown = [verdict for verdict in verdicts if variants or VARIANT not in verdict.cell]
    beside = overview.beside_the_verdicts(everything, results)
    if len(shown) < len(verdicts):
        beside.append(
            f"{len(verdicts) - len(shown)} verdicts on variants of cells are not shown; --variants shows them"
        )
    warn(beside)
    if shown or not beside:
        out.print(tables.verdicts_table(shown) if shown else "No records yet; `matrix run` makes some.")
