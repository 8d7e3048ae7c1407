"""The options that say what is run and where, and the workload and the place that they choose."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from harness.base.errors import UserError
from harness.campaign.bench.open_bench import BenchOptions
from harness.cli.completion import complete_workloads
from harness.cli.program_options import own_program, with_program_copy
from harness.cli.shared import Settings, data_option, executor_option, known
from harness.environments.verifier import verifying_stack
from harness.matrix.refusals import with_lookback
from harness.matrix.workloads import SHORTEST_LOOKBACK, Workload

DEFAULT_SELECTION = "default"


def workload_options(command: Any) -> Any:
    """Add the options that say what is run."""
    for option in (
        click.option(
            "--workload",
            shell_complete=complete_workloads,
            help="Workload of the matrix file (default: the selection's).",
        ),
        data_option("Merged CSV to train on (default: synthetic)."),
        click.option(
            "--lookback",
            type=click.IntRange(min=SHORTEST_LOOKBACK),
            help="First sessions, which only feed the features that look back.",
        ),
        click.option("--warm-up", "lookback", type=click.IntRange(min=SHORTEST_LOOKBACK), hidden=True),
        click.option("--python", type=click.Path(path_type=Path), help="Python interpreter for the stack `host`."),
        executor_option("Run cells in containers or as processes (default: containers where a Docker engine answers)."),
    ):
        command = option(command)
    return command


def stage_workload(settings: Settings, options: Mapping[str, Any]) -> Workload:
    """Return the workload of the stage that `--stage` names, as it is run there.

    Raises:
        UserError: where there is no such stage, or it runs nothing.
    """
    matrix = settings.matrix
    stage = matrix.stages[known(options["stage"], matrix.stages, "stage")]
    if options["workload"]:
        raise UserError(f"--stage {stage.name} has a workload of its own; leave --workload out")
    if stage.workload is None:
        raise UserError(f"--stage {stage.name}: is checked by the doctor; run `matrix doctor`")
    workload = chosen_workload(settings, DEFAULT_SELECTION, {**options, "workload": stage.workload})
    several = {"strategy": stage.strategy, "backend": None} if stage.devices == "all" else {}
    return workload.model_copy(update=several)


def bench_options(settings: Settings, options: Mapping[str, Any]) -> BenchOptions:
    """Return what `workload_options` say of the place where cells are run."""
    return BenchOptions(
        settings.results,
        # A program of the user's own reads it as it likes.
        None if options.get("app") else options["data"],
        options["python"],
        options["executor"],
        settings.root,
        verifying_stack(settings.matrix),
        options.get("dispatcher"),
    )


def chosen_workload(settings: Settings, selection: str, options: Mapping[str, Any]) -> Workload:
    """Return the workload that `workload_options` name, that of `--app`, or that of the selection.

    Raises:
        UserError: where there is none of that name, or something of a program of the user's own is not there.
    """
    if own := own_program(options):
        return with_program_copy(own)
    matrix, name, lookback = settings.matrix, options["workload"], options["lookback"]
    workload = matrix.workloads[known(name or matrix.selections[selection].workload, matrix.workloads, "workload")]
    workload = with_program_copy(workload)
    return workload if lookback is None else workload_with_lookback(workload, lookback, options)


def workload_with_lookback(workload: Workload, lookback: int, options: Mapping[str, Any]) -> Workload:
    """Return the workload with the `--lookback` that was given.

    Raises:
        UserError: where its synthetic bars are too few for that.
    """
    try:
        return with_lookback(workload, lookback, synthetic=options["data"] is None)
    except ValueError as error:
        raise UserError(f"--lookback {lookback}: {error}; give fewer sessions, or --data") from None
