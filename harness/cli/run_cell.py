"""The commands that do one thing in a cell: `matrix run-cell` makes a run, `matrix exec` runs a command by hand."""

import os
import sys
from typing import IO, Any

import click

from harness.base.errors import UserError
from harness.campaign.bench.plan import BEST
from harness.campaign.by_hand import IN_CELL, command_in_cell, docker_command
from harness.campaign.run_one import run_one
from harness.cli.clusters import run_request
from harness.cli.completion import complete_cells, complete_cells_and_best
from harness.cli.in_background import through_closed_terminal
from harness.cli.program_options import WithProgram, program_options
from harness.cli.shared import INTERRUPTED, Settings, as_json, err, known, pass_settings
from harness.cli.workload_choice import bench_options, chosen_workload, workload_options
from harness.run.launch import NOT_CHECKED
from harness.screen.display import CampaignDisplay
from harness.screen.fitted import print_folded
from harness.screen.steps import Steps
from harness.screen.terminal import echo


@click.command("run-cell", cls=WithProgram)
@click.argument("cell", required=False, shell_complete=complete_cells)
@workload_options
@program_options
@click.option("--run-id", help="Id of the run; a run that has its record already is not run again.")
@click.option("--request", type=click.File("rb"), hidden=True)
@click.option(
    "--print-command", is_flag=True, help="Only print the docker command that runs it; pull and build nothing."
)
@as_json
@pass_settings
def run_cell_command(
    settings: Settings,
    /,
    cell: str | None,
    as_json: bool,
    run_id: str | None,
    request: IO[bytes] | None,
    print_command: bool,
    **options: Any,
) -> None:
    """Run one cell once, watch it, and leave its record.

    The run continues when its terminal is closed.
    """
    if request:
        sys.exit(run_request(settings, request.read()))
    if cell is None:
        raise click.MissingParameter(None, click.get_current_context(), param_hint="CELL")
    chosen = settings.cell(cell)
    workload = chosen_workload(settings, "default", options)
    place = bench_options(settings, options)
    if print_command:
        echo(docker_command(place, chosen, workload))
        return
    if workload.program:
        print_folded(err, f"{NOT_CHECKED}; {workload.program.hangs_when}")
    with (
        through_closed_terminal(settings, what="run", watched="attaches once it has begun"),
        CampaignDisplay(err, command=settings.invocation.command) as display,
    ):
        try:
            record = run_one(place, chosen, workload, run_id, display)
        except KeyboardInterrupt:
            # The outcome was already shown when the run was recorded.
            sys.exit(INTERRUPTED)
    if as_json:
        echo(record.model_dump_json(indent=2, by_alias=True))
    else:
        echo(f"{record.intent.run_id}: {record.ended}")
        echo(f"record in {settings.results.run_folder(record.intent.run_id)}")
    sys.exit(0 if record.outcome == "completed" else 1)


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("cell", shell_complete=complete_cells_and_best)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_settings
def execute(settings: Settings, cell: str, command: tuple[str, ...]) -> None:
    """Run `vpoc ...` by hand in a cell's environment: `matrix exec cpu-plain vpoc train --data merged.csv`.

    CELL `best` is the first plain cell here that suits the driver.
    """
    if cell in IN_CELL:
        typed = settings.invocation.command("exec", BEST, cell, *command)
        raise UserError(f"exec: CELL comes first, `{BEST}` or the name of one; type `{typed}`")
    if cell != BEST:
        known(cell, settings.matrix.cells, "cell")
    with Steps(err) as steps:
        program, arguments, variables = command_in_cell(settings.matrix, cell, command, steps.step, settings.root)
    os.execve(program, arguments, variables)  # noqa: S606
