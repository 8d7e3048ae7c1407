"""The options that describe a campaign, and the preparation of the campaign that they describe."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from harness.base.errors import UserError
from harness.campaign.planning.prepare import PreparedCampaign, prepare_campaign, prepare_stages
from harness.campaign.planning.screen_gpus import may_use
from harness.cli.completion import complete_cells, complete_selections, complete_stages
from harness.cli.goal import goal_of, goal_options, workload_for_tags
from harness.cli.program_options import program_options, with_program_copy
from harness.cli.shared import Settings, ask_user, known, warn
from harness.cli.workload_choice import (
    DEFAULT_SELECTION,
    bench_options,
    chosen_workload,
    stage_workload,
    workload_options,
    workload_with_lookback,
)
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from harness.matrix.workloads import Workload

# Largest number of repeats: more than anybody waits for, and few enough to plan within seconds.
MOST_REPEATS = 10_000
# Default budget of a campaign in stages, in seconds: an evening and a night.
BUDGET = 10 * 3600.0


def campaign_options(command: Any) -> Any:
    """Add the options that say which cells are run and how often. The command must be a `WithProgram`."""
    for option in (
        click.argument("cells", nargs=-1, shell_complete=complete_cells),
        click.option(
            "--selection",
            shell_complete=complete_selections,
            help="Selection of the matrix file to run (default: stages on a host with GPUs).",
        ),
        click.option("--stage", shell_complete=complete_stages, help="Run only this stage of the matrix file."),
        click.option("--repeats", type=click.IntRange(1, MOST_REPEATS), help="Runs of each cell (default: 1)."),
        click.option(
            "--controls/--no-controls",
            default=True,
            help="With --repeats: after failures that a GPU or the host can cause, add runs that tell (default: yes).",
        ),
        click.option(
            "--on",
            "cluster",
            help="Make the runs on the nodes of a cluster: `slurm`, or a name under hosts: of the matrix file.",
        ),
        click.option(
            "--use-screen-gpu/--no-use-screen-gpu",
            default=None,
            help="Whether runs may use a GPU with a screen (default: `run` asks once; without a terminal, no).",
        ),
    ):
        command = option(command)
    return workload_options(program_options(goal_options(command)))


def prepare(settings: Settings, **options: Any) -> PreparedCampaign:
    """Prepare the campaign that the options describe.

    Raises:
        UserError: when the campaign cannot be prepared, or options contradict each other.
    """
    matrix, cells = settings.matrix, options["cells"]
    for cell in cells:
        known(cell, matrix.cells, "cell")
    selection = known(options["selection"] or DEFAULT_SELECTION, matrix.selections, "selection")
    may_use_screens = partial(_may_use_screens, settings, **options)
    if _in_stages(options) and (
        prepared := prepare_stages(
            bench_options(settings, options),
            _of_stages(matrix, options),
            selection,
            options["budget"] or BUDGET,
            may_use_screens,
        )
    ):
        return prepared
    if _in_stages(options):
        # Without a GPU only the smoke stage remains, and it takes minutes.
        if options["budget"]:
            warn(["--budget has no effect without a GPU: each cell of the selection is run once"])
        options["budget"] = None
    workload = stage_workload(settings, options) if options["stage"] else chosen_workload(settings, selection, options)
    # A cell that is typed twice is run as often as the others.
    chosen = [matrix.cells[cell] for cell in dict.fromkeys(cells)] or matrix.select(selection)
    goal = goal_of(settings, options["until"], **{name: options[name] for name in ("every", "confidence", "budget")})
    if goal and options["repeats"]:
        raise UserError("--repeats fixes the number of runs, which --until and --all leave open; give one of them")
    if goal:
        workload = workload_for_tags(
            settings, workload, named=bool(options["workload"] or options["stage"] or options["app"])
        )
    repeats, named = options["repeats"] or 1, bool(cells)
    return prepare_campaign(
        bench_options(settings, options),
        matrix,
        chosen,
        workload,
        repeats,
        goal=goal,
        named=named,
        controls=options["controls"],
        may_use_screens=may_use_screens,
    )


def _may_use_screens(
    settings: Settings, host: HostFacts, *, use_screen_gpu: bool | None = None, asks: bool = False, **_: Any
) -> bool:
    """Return whether runs may use a GPU with a screen.

    `matrix plan` asks no question and stores no answer; without an answer it plans what a run would be allowed.
    """
    ask = partial(ask_user, option="--use-screen-gpu or --no-use-screen-gpu") if asks and sys.stdin.isatty() else None
    return may_use(host, settings.results, use_screen_gpu, ask, notes=asks)


def _of_stages(matrix: Matrix, options: Mapping[str, Any]) -> Matrix:
    """Return the matrix with its stages' workloads prepared: the lookback that was given is set, programs are taken."""
    lookback, used = options["lookback"], {stage.workload for stage in matrix.stages.values()}

    def of_stage(workload: Workload) -> Workload:
        if workload.program or lookback is None:
            return with_program_copy(workload)
        return workload_with_lookback(workload, lookback, options)

    workloads = {name: of_stage(one) if name in used else one for name, one in matrix.workloads.items()}
    return matrix.model_copy(update={"workloads": workloads})


def _in_stages(options: Mapping[str, Any]) -> bool:
    """Return whether no option or argument says which runs to make."""
    said = ("cells", "selection", "stage", "until", "every", "repeats", "workload", "python", "app")
    return not any(options[name] for name in said)
