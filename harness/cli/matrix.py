"""The commands that show what the matrix file says."""

from dataclasses import asdict

import click

from harness.cli.describe import describe_cell, describe_workload
from harness.cli.shared import Settings, as_json, known, out, pass_settings, print_json
from harness.matrix.lint import beyond_cpu
from harness.matrix.lint import lint as lint_presets
from harness.screen import tables


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
    if not selection:
        click.echo()
        out.print(tables.workloads_table(matrix.workloads.values()))


@click.command()
@as_json
@pass_settings
def lint(settings: Settings, as_json: bool) -> None:
    """Name every preset variable that does nothing, contradicts another or is the default, and where."""
    findings = lint_presets(settings.matrix)
    if as_json:
        print_json([asdict(finding) for finding in findings])
        return
    elsewhere = beyond_cpu(findings, settings.matrix)
    out.print(tables.findings_table(elsewhere))
    click.echo(
        f"On stacks without ROCm, {len(findings) - len(elsewhere)} settings of ROCm variables do nothing (--json)"
    )
