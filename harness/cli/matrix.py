"""The commands that show what the matrix file defines: `matrix show` and `matrix lint`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from harness.base.errors import UserError
from harness.cli.completion import complete_presets, complete_selections
from harness.cli.describe import describe_cell, describe_workload
from harness.cli.shared import Settings, as_json, as_typed, known, out, pass_settings, print_json, print_lines, warn
from harness.matrix.lint import beyond_cpu
from harness.matrix.lint import lint as lint_presets
from harness.matrix.new_wheels import NewPair, age_of_table, new_pairs
from harness.screen import tables
from harness.screen.fitted import print_folded, print_table, wide_option
from harness.screen.terminal import echo


@click.command()
@click.option("--selection", shell_complete=complete_selections, help="The cells of a selection, one by one.")
@click.option("--all", "every", is_flag=True, help="Every cell, one by one.")
@wide_option
@as_json
@pass_settings
def show(settings: Settings, selection: str | None, every: bool, wide: bool, as_json: bool) -> None:
    """Print what the matrix file resolves to: selections, stacks, presets and workloads.

    With --selection or --all it lists each cell, and why some are excluded. --json has every cell and workload.
    """
    matrix = settings.matrix
    if selection and every:
        raise UserError("--all prints the cells of every selection; leave one of them out")
    cells = (
        matrix.select(known(selection, matrix.selections, "selection")) if selection else list(matrix.cells.values())
    )
    if as_json:
        described = [describe_workload(workload) for workload in matrix.workloads.values()]
        print_json({"cells": [describe_cell(cell) for cell in cells], "workloads": described})
        return
    if selection or every:
        print_table(out, tables.cells_table(cells), tables.OF_CELLS, "excluded because", wide=wide)
        for stack, reason in matrix.selections[selection].reasons.items() if selection else ():
            echo(f"{stack}: {reason}")
        return
    print_table(out, tables.selections_table(matrix), (), "what", wide=wide)
    echo()
    print_table(out, tables.stacks_table(matrix.stacks.values()), (), "stacks", wide=wide)
    echo()
    print_folded(out, f"presets: {', '.join(matrix.presets)}")
    echo()
    workloads = tables.workloads_table(matrix.workloads.values(), wide=wide)
    print_table(out, workloads, tables.OF_WORKLOADS, "what", wide=wide)
    echo()
    excluded = sum(bool(cell.excluded) for cell in cells)
    print_folded(
        out,
        f"{len(cells)} cells, of which {excluded} are excluded. {as_typed('`matrix show --selection NAME`')} or --all "
        "prints them one by one.",
    )


@click.command()
@click.argument("presets", nargs=-1, shell_complete=complete_presets)
@click.option("--details", is_flag=True, help="Print every finding of every preset: what, why and on which stacks.")
@click.option(
    "--new",
    "listing",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A listing of a package index: print the lines that wheels.yaml and matrix.yaml lack, and nothing else.",
)
@as_json
@pass_settings
def lint(settings: Settings, presets: tuple[str, ...], details: bool, listing: Path | None, as_json: bool) -> None:
    """Name every preset variable that does nothing, contradicts another or is the default, and where.

    Prints counts by preset; details of PRESETS, or of all presets with --details.
    """
    for preset in presets:
        known(preset, settings.matrix.presets, "preset")
    if listing:
        _print_new(new_pairs(listing.read_text(encoding="utf-8", errors="replace")), as_json=as_json)
        return
    if old := age_of_table(datetime.now(UTC).date()):
        warn([old])
    findings = [one for one in lint_presets(settings.matrix) if not presets or one.preset in presets]
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return
    elsewhere = beyond_cpu(findings, settings.matrix)
    if presets or details:
        for line in tables.finding_details(elsewhere) or [f"No findings for {', '.join(presets)}."]:
            print_folded(out, line)
        return
    print_table(out, tables.findings_table(elsewhere), (), "variables")
    echo(
        "The variables of each preset by finding. "
        f"{as_typed('`matrix lint PRESET`')} says why and where, --details of every preset."
    )
    idle = len(findings) - len(elsewhere)
    echo(f"Besides, {idle} settings of ROCm variables have no effect on stacks without ROCm (--json)")


def _print_new(pairs: Sequence[NewPair], *, as_json: bool) -> None:
    if as_json:
        listed = [{**asdict(pair), "release": pair.release_line, "stack": pair.stack_line} for pair in pairs]
        print_json({"pairs": listed})
    elif pairs:
        print_lines(["# releases: of harness/matrix/wheels.yaml", *(pair.release_line for pair in pairs)])
        print_lines(["# stacks: of matrix.yaml", *(pair.stack_line for pair in pairs)])
    else:
        echo("nothing new: wheels.yaml has every release of torch for ROCm in it")
