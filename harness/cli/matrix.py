"""The commands that show what the matrix file says."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from harness.cli.describe import describe_cell, describe_workload
from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json, print_lines, warn
from harness.matrix.lint import beyond_cpu
from harness.matrix.lint import lint as lint_presets
from harness.matrix.new_wheels import NewPair, age_of_table, new_pairs
from harness.screen import tables
from harness.screen.terminal import echo


@click.command()
@click.option("--selection", help="Only the cells of a selection (default: every cell).")
@as_json
@pass_settings
def show(settings: Settings, selection: str | None, as_json: bool) -> None:
    """Print the cells the matrix file resolves to, why some are excluded, and the workloads."""
    matrix = settings.matrix
    cells = (
        matrix.select(known(selection, matrix.selections, "selection")) if selection else list(matrix.cells.values())
    )
    if as_json:
        workloads = [describe_workload(workload) for workload in matrix.workloads.values()]
        print_json({"cells": [describe_cell(cell) for cell in cells], "workloads": workloads})
        return
    out.print(tables.cells_table(cells))
    for stack, reason in matrix.selections[selection].reasons.items() if selection else ():
        echo(f"{stack}: {reason}")
    if not selection:
        echo()
        out.print(tables.workloads_table(matrix.workloads.values()))


@click.command()
@click.option(
    "--new",
    "listing",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A listing of a package index: print the lines that wheels.yaml and matrix.yaml lack, and nothing else.",
)
@as_json
@pass_settings
def lint(settings: Settings, listing: Path | None, as_json: bool) -> None:
    """Name every preset variable that does nothing, contradicts another or is the default, and where."""
    if listing:
        _print_new(new_pairs(listing.read_text(encoding="utf-8", errors="replace")), as_json=as_json)
        return
    if old := age_of_table(datetime.now(UTC).date()):
        warn([old])
    findings = lint_presets(settings.matrix)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
        return
    elsewhere = beyond_cpu(findings, settings.matrix)
    out.print(tables.findings_table(elsewhere))
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
