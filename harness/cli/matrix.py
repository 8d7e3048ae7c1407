"""The commands that show what the matrix file says."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from harness.cli.completion import complete_presets, complete_selections
from harness.cli.describe import describe_cell, describe_workload
from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json, print_lines, warn
from harness.matrix.lint import beyond_cpu
from harness.matrix.lint import lint as lint_presets
from harness.matrix.new_wheels import NewPair, age_of_table, new_pairs
from harness.screen import tables
from harness.screen.fitted import print_folded, print_table, wide_option
from harness.screen.terminal import echo


@click.command()
@click.option(
    "--selection", shell_complete=complete_selections, help="Only the cells of a selection (default: every cell)."
)
@wide_option
@as_json
@pass_settings
def show(settings: Settings, selection: str | None, wide: bool, as_json: bool) -> None:
    """Print the cells the matrix file resolves to, why some are excluded, and the workloads."""
    matrix = settings.matrix
    cells = (
        matrix.select(known(selection, matrix.selections, "selection")) if selection else list(matrix.cells.values())
    )
    if as_json:
        workloads = [describe_workload(workload) for workload in matrix.workloads.values()]
        print_json({"cells": [describe_cell(cell) for cell in cells], "workloads": workloads})
        return
    print_table(out, tables.cells_table(cells), tables.OF_CELLS, "excluded because", wide=wide)
    for stack, reason in matrix.selections[selection].reasons.items() if selection else ():
        echo(f"{stack}: {reason}")
    if not selection:
        echo()
        print_table(out, tables.workloads_table(matrix.workloads.values()), tables.OF_WORKLOADS, "what", wide=wide)


@click.command()
@click.argument("presets", nargs=-1, shell_complete=complete_presets)
@click.option("--details", is_flag=True, help="Say of every preset what, why and on which stacks.")
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

    Counts by preset; details of PRESETS, or with --details of all of them.
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
        for line in tables.finding_details(elsewhere) or [f"Nothing is to be said of {', '.join(presets)}."]:
            print_folded(out, line)
        return
    print_table(out, tables.findings_table(elsewhere), (), "variables")
    echo("Variables by what is to be said of them. `matrix lint PRESET` says why and where, --details of every preset.")
    echo(f"On stacks without ROCm, {len(findings) - len(elsewhere)} settings of ROCm variables do nothing (--json)")


def _print_new(pairs: Sequence[NewPair], *, as_json: bool) -> None:
    if as_json:
        listed = [{**asdict(pair), "release": pair.release_line, "stack": pair.stack_line} for pair in pairs]
        print_json({"pairs": listed})
    elif pairs:
        print_lines(["# releases: of harness/matrix/wheels.yaml", *(pair.release_line for pair in pairs)])
        print_lines(["# stacks: of matrix.yaml", *(pair.stack_line for pair in pairs)])
    else:
        echo("nothing new: wheels.yaml has every release of torch for ROCm in it")
