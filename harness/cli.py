"""`matrix`: parses and prints, nothing else."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from harness import __version__, cli_doctor, cli_drill, cli_explain, cli_images, commands, tables
from harness.cli_shared import (
    INTERRUPTED,
    Settings,
    as_json,
    confirm,
    err,
    known,
    out,
    pass_settings,
    print_json,
    print_lines,
)
from harness.display import CampaignDisplay, Steps
from harness.engine import ENGINE_ERRORS, explain
from harness.errors import UserError
from harness.host.health_log import sick_gpus
from harness.host.reboot import check_reboot, reboot_and_resume, this_command
from harness.interrupts import interruptible
from harness.matrix import Workload
from harness.presets import beyond_cpu
from harness.presets import lint as lint_presets

CONTEXT = {"token_normalize_func": lambda word: word.replace("_", "-"), "help_option_names": ["-h", "--help"]}


def workload_options(command: Any) -> Any:
    """The options that say what is run."""
    for option in (
        click.option("--workload", help="Workload of the matrix file (default: the selection's)."),
        click.option("--data", type=click.Path(path_type=Path), help="Merged CSV to train on (default: synthetic)."),
        click.option("--warm-up", type=click.IntRange(min=0), help="Sessions to drop before the first row."),
        click.option("--python", type=click.Path(path_type=Path), help="Interpreter of the stack `host`."),
        click.option(
            "--executor",
            type=click.Choice(["docker", "process"]),
            envvar="MATRIX_EXECUTOR",
            show_envvar=True,
            help="Run cells in containers or as processes (default: containers where a Docker engine answers).",
        ),
    ):
        command = option(command)
    return command


def campaign_options(command: Any) -> Any:
    """The options that say which cells are run, and how often."""
    for option in (
        click.argument("cells", nargs=-1),
        click.option("--selection", default="default", show_default=True, help="Selection of the matrix file."),
        click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each cell."),
    ):
        command = option(command)
    return workload_options(command)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="matrix")
@click.option("--matrix", "file", type=click.Path(path_type=Path), default=Path("matrix.yaml"), show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--base", metavar="IMAGE", envvar="MATRIX_BASE", show_envvar=True, help="Base image of every stack that names none."
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    envvar="MATRIX_WHEELS",
    show_envvar=True,
    help="Folder of wheels to take first.",
)
@click.pass_context
def cli(context: click.Context, file: Path, results: Path, base: str | None, wheels: Path | None) -> None:
    """Find out which ROCm x PyTorch x environment trains to completion on this machine.

    A cell is a stack (what is installed) with a preset (environment variables), e.g. rocm6.3-torch2.9.1-plain.
    Start with `matrix doctor`, then `matrix plan`, `matrix run` and `matrix status`.
    """
    if wheels:
        if not wheels.is_dir():
            raise UserError(f"--wheels {wheels}: no such folder")
        os.environ["UV_FIND_LINKS"] = ",".join(filter(None, [str(wheels.resolve()), os.environ.get("UV_FIND_LINKS")]))
    context.obj = Settings(file, results, base)


@cli.command()
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
        workloads = [commands.describe_workload(workload) for workload in matrix.workloads.values()]
        print_json({"cells": [commands.describe(cell) for cell in cells], "workloads": workloads})
        return
    out.print(tables.cells_table(cells))
    if not selection:
        click.echo()
        out.print(tables.workloads_table(matrix.workloads.values()))


@cli.command()
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


@cli.command()
@campaign_options
@as_json
@pass_settings
def plan(settings: Settings, /, as_json: bool, **options: Any) -> None:
    """Print what `matrix run` would do here: cells, runs, disk, time."""
    prepared = _prepare(settings, **options)
    if as_json:
        print_json(commands.describe_plan(prepared.plan, prepared.capabilities))
    else:
        click.echo(prepared.capabilities.sentence)
        print_lines(tables.plan_lines(prepared.plan))


@cli.command()
@campaign_options
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@click.option(
    "--reboot-when-sick", is_flag=True, help="Reboot and go on when a GPU is sick, at most three times in 12 hours."
)
@as_json
@pass_settings
def run(settings: Settings, /, yes: bool, reboot_when_sick: bool, as_json: bool, **options: Any) -> None:
    """Run cells (default: a selection) one after the other; go on where an interrupted campaign stopped.

    Exit status: 0 when every run completed, 1 when one did not, 130 after Ctrl-C.
    """
    if reboot_when_sick:
        check_reboot()
    prepared = _prepare(settings, **options)
    err.print(prepared.capabilities.sentence, soft_wrap=True)
    for line in tables.plan_lines(prepared.plan):
        err.print(line, soft_wrap=True, markup=False)
    commands.check_feasible(prepared.plan)
    confirm(prepared.plan.download_gb, yes=yes)
    with interruptible():
        with CampaignDisplay(err) as display:
            ended = commands.run_campaign(prepared, display)
        files = _write_reports(settings)
        if as_json:
            print_json(commands.describe_campaign(ended))
        else:
            out.print(tables.status_table(ended.statuses))
            click.echo(f"Records in {settings.results.runs}, report in {files[0]} and {files[1].name}")
    if ended.interrupted:
        err.print(
            f"Interrupted: {ended.done} of {ended.total} runs are done; the same command goes on where it stopped."
        )
        sys.exit(INTERRUPTED)
    host = prepared.bench.host
    if reboot_when_sick and ended.done < ended.total and sick_gpus(settings.results, host):
        executor = prepared.capabilities.executor
        reboot_and_resume(this_command(), Path.cwd(), settings.results, host.machine, executor)
    sys.exit(0 if ended.all_completed else 1)


@cli.command("run-cell")
@click.argument("cell")
@workload_options
@click.option("--run-id", help="Id of the run; a run of that id that has its record is not run again.")
@click.option("--print-command", is_flag=True, help="Only make the image, and print the docker command that runs it.")
@as_json
@pass_settings
def run_cell(
    settings: Settings, /, cell: str, as_json: bool, run_id: str | None, print_command: bool, **options: Any
) -> None:
    """Run one cell once, watch it, and leave its record."""
    chosen = settings.matrix.cells[known(cell, settings.matrix.cells, "cell")]
    workload = _workload(settings, "default", options.pop("workload"), options.pop("warm_up"))
    if print_command:
        with interruptible(), Steps(err) as steps:
            printed = commands.print_command(settings.results, chosen, workload, steps.step, data=options["data"])
        click.echo(printed)
        return
    with interruptible(), CampaignDisplay(err) as display:
        try:
            record = commands.run_one(settings.results, chosen, workload, run_id, display, **options)
        except KeyboardInterrupt:
            # What became of the run was shown when it was recorded.
            sys.exit(INTERRUPTED)
    if as_json:
        click.echo(record.model_dump_json(indent=2, by_alias=True))
    else:
        click.echo(f"{record.intent.run_id}: {record.outcome}{f' ({record.diagnosis})' if record.diagnosis else ''}")
        click.echo(f"record in {settings.results.run_folder(record.intent.run_id)}")
    sys.exit(0 if record.outcome == "completed" else 1)


@cli.command()
@click.argument("cell", required=False)
@as_json
@pass_settings
def status(settings: Settings, cell: str | None, as_json: bool) -> None:
    """Sum up the records: all cells, or every run of one CELL."""
    if cell is not None:
        rows = commands.runs_of(settings.results, known(cell, settings.matrix.cells, "cell"))
        if as_json:
            print_json([row.as_dict() for row in rows])
        else:
            out.print(tables.runs_table(rows))
        return
    statuses = commands.statuses(settings.results, settings.matrix)
    if as_json:
        print_json([commands.describe_status(status) for status in statuses])
        return
    beside = commands.beside_the_statuses(settings.results)
    _warn(beside)
    if statuses or not beside:
        out.print(tables.status_table(statuses) if statuses else "No records yet; `matrix run` makes some.")


@cli.command()
@as_json
@pass_settings
def report(settings: Settings, as_json: bool) -> None:
    """Write report.html and report.md into the results folder."""
    files = _write_reports(settings)
    if as_json:
        print_json({"files": [str(file) for file in files]})
    else:
        print_lines([str(file) for file in files])


@cli.command()
@as_json
@pass_settings
def index(settings: Settings, as_json: bool) -> None:
    """Make records.db anew from the run folders, which are the truth."""
    records, damaged = commands.rebuild_index(settings.results)
    _warn(damaged)
    if as_json:
        print_json({"records": records, "damaged": damaged})
    else:
        click.echo(f"{records} records in {settings.results.folder / 'records.db'}")


@cli.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("cell")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_settings
def execute(settings: Settings, cell: str, command: tuple[str, ...]) -> None:
    """Run `vpoc ...` by hand in a cell's environment: `matrix exec cpu-plain vpoc train --data merged.csv`.

    CELL `best` is the plain cell that this host would run first.
    """
    if cell != "best":
        known(cell, settings.matrix.cells, "cell")
    program, arguments, variables = commands.by_hand(settings.matrix, cell, command)
    os.execve(program, arguments, variables)  # noqa: S606


for command in (
    cli_doctor.doctor,
    cli_explain.explain,
    cli_drill.drill,
    cli_images.render,
    cli_images.build,
    cli_images.lock,
    cli_images.push,
    cli_images.pull,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: what a user can mend is one line and exit status 2."""
    try:
        cli(args=arguments, prog_name="matrix")
    except UserError as error:
        click.echo(f"matrix: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (such as `head`) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ENGINE_ERRORS as error:
        click.echo(f"matrix: the Docker engine: {explain(error)}", err=True)
        sys.exit(2)
    except OSError as error:
        # A full disk or a folder without permission, wherever it was met; a terminal that was closed has no name.
        what = f"{error.filename}: {error.strerror}; free space or choose another folder"
        with suppress(OSError):
            click.echo(f"matrix: {what if error.filename else f'standard output: {error.strerror}'}", err=True)
        sys.exit(2)


def _write_reports(settings: Settings) -> list[Path]:
    files, damaged = commands.write_reports(settings.results, settings.matrix)
    _warn(damaged)
    return files


def _warn(damaged: list[str]) -> None:
    for text in damaged:
        click.echo(f"matrix: {text}", err=True)


def _prepare(settings: Settings, **options: Any) -> commands.Prepared:
    matrix, cells = settings.matrix, options["cells"]
    for cell in cells:
        known(cell, matrix.cells, "cell")
    selection = known(options["selection"], matrix.selections, "selection")
    workload = _workload(settings, selection, options["workload"], options["warm_up"])
    chosen = [matrix.cells[cell] for cell in cells] or matrix.select(selection)
    place = {"data": options["data"], "interpreter": options["python"], "executor": options["executor"]}
    return commands.prepare(settings.results, chosen, workload, options["repeats"], named=bool(cells), **place)


def _workload(settings: Settings, selection: str, name: str | None, warm_up: int | None) -> Workload:
    matrix = settings.matrix
    workload = matrix.workloads[known(name or matrix.selections[selection].workload, matrix.workloads, "workload")]
    return workload if warm_up is None else workload.model_copy(update={"warm_up": warm_up})
