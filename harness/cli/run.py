"""The commands that run cells."""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from harness.base.closed_terminal import outliving
from harness.base.command_words import with_option
from harness.base.errors import UserError
from harness.base.interrupts import interruptible
from harness.campaign.answered import LastAnswer, NextCommand, last_answer, remember_answer
from harness.campaign.bench import Bench
from harness.campaign.by_hand import command_in_cell, docker_command
from harness.campaign.forecast import forecast, forecast_lines
from harness.campaign.plan import BEST
from harness.campaign.prepare import PreparedCampaign, prepare_campaign, prepare_stages
from harness.campaign.reach import reach_of
from harness.campaign.reboot import check_reboot, reboot_and_resume, reboots_left, this_command
from harness.campaign.recovery import close_leftovers
from harness.campaign.run_campaign import CampaignResult, run_campaign, verdicts_of_campaign
from harness.campaign.run_one import run_one
from harness.campaign.runner import CONTINUES
from harness.campaign.screen_gpus import may_use
from harness.campaign.under_way import noted_under_way
from harness.cli.clusters import dispatchers_of, of_cluster, run_request
from harness.cli.completion import complete_cells, complete_selections
from harness.cli.describe import describe_campaign, describe_plan
from harness.cli.goal import goal_of, goal_options, workload_for_tags
from harness.cli.in_background import start_in_background, terminal_to_outlive
from harness.cli.kinds import end_with_starter, run_each_kind
from harness.cli.program_options import WithProgram, program_options, taken
from harness.cli.records import report_on
from harness.cli.shared import (
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
    typed_words,
    warn,
)
from harness.cli.workload_choice import (
    DEFAULT_SELECTION,
    bench_options,
    chosen_workload,
    stage_workload,
    workload_options,
    workload_with_lookback,
)
from harness.evidence.health_log import unhealthy_gpus
from harness.host.awake import stay_awake
from harness.host.facts import HostFacts
from harness.host.fingerprint import machine_of
from harness.matrix.cells import Matrix
from harness.matrix.workloads import Workload
from harness.screen import tables
from harness.screen.answer import print_answer
from harness.screen.display import CampaignDisplay, Steps
from harness.screen.fitted import print_folded
from harness.screen.terminal import echo
from harness.search.conclusion import budget_in_words

# Of a campaign in stages: an evening and a night.
BUDGET = 10 * 3600.0


def campaign_options(command: Any) -> Any:
    """Add the options that say which cells are run, and how often; the command is a `WithProgram`."""
    for option in (
        click.argument("cells", nargs=-1, shell_complete=complete_cells),
        click.option(
            "--selection",
            shell_complete=complete_selections,
            help="Selection of the matrix file, in turn (default: stages on a host with GPUs).",
        ),
        click.option("--stage", help="Only what a stage of the matrix file runs."),
        click.option("--repeats", type=click.IntRange(min=1), help="Runs of each cell (default: 1)."),
        click.option(
            "--controls/--no-controls",
            default=True,
            help="With --repeats: where failures may be a GPU's or the host's, add runs that tell (default: yes).",
        ),
        click.option(
            "--on",
            "cluster",
            help="Make the runs on the nodes of a cluster: `slurm`, or a name under hosts: of the matrix file.",
        ),
        click.option(
            "--use-screen-gpu/--no-use-screen-gpu",
            default=None,
            help="In stages: may runs use a GPU that a screen is connected to? (default: `run` asks once; without a "
            "terminal no)",
        ),
    ):
        command = option(command)
    return workload_options(program_options(goal_options(command)))


@click.command(cls=WithProgram)
@campaign_options
@click.option("--wide", is_flag=True, help="Name every cell.")
@as_json
@pass_settings
def plan(settings: Settings, /, wide: bool, as_json: bool, **options: Any) -> None:
    """Print what `matrix run` would do here: cells, runs, disk, time."""
    settings = of_cluster(settings, options["cluster"])
    kinds = dispatchers_of(settings, options["cluster"])
    for other in kinds[1:]:
        warn([f"{', '.join(other.nodes)}: of another host kind, with a campaign of its own; this is of the others"])
    prepared = _prepare(settings, dispatcher=next(iter(kinds), None), **options)
    if as_json:
        stages = {"stages": asdict(forecast(prepared))} if prepared.stages else {}
        print_json({**describe_plan(prepared.plan, prepared.capabilities), **stages})
    else:
        print_folded(out, prepared.capabilities.sentence)
        for line in _plan_lines(prepared, wide=wide):
            print_folded(out, line)


@click.command(cls=WithProgram)
@campaign_options
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@click.option(
    "--reboot-when-unhealthy",
    is_flag=True,
    help="Reboot and continue when a GPU is unhealthy, at most three times in 12 hours.",
)
@click.option(
    "--detach", "in_background", is_flag=True, help="Run on when this terminal closes; `matrix watch` attaches."
)
@click.option("--kind", hidden=True)
@click.option("--reboot-when-sick", "reboot_when_unhealthy", is_flag=True, hidden=True)
@as_json
@pass_settings
def run(
    settings: Settings,
    /,
    yes: bool,
    reboot_when_unhealthy: bool,
    in_background: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run cells (default: a selection) one after the other; continue where an interrupted campaign stopped.

    With nothing said, on a host with GPUs: in the stages of the matrix file, stack by stack, until one cell is shown to
    be good, at most ten hours or --budget; without a GPU each cell of the selection once.

    With `--app DIR -- COMMAND` a program of your own is run there, under the same watch; its numbers are not checked,
    and nothing is promoted by it.

    With cells or --selection: each once, or --repeats times. With `--until known-good` as few runs as it takes to find
    one cell that can be relied on; with `--all` as many as it takes to know of every cell; both within a --budget, if
    one is given.

    With --repeats, where a cell fails twice in a way that a GPU or the host can cause, at most 40 controls follow that
    tell cell, stack, GPU and host apart (`matrix isolate`).

    Exit status: 0 when every run completed (with --until or --all: when that was reached), 1 if not, 130 after Ctrl-C.
    """
    settings = of_cluster(settings, options["cluster"])
    if reboot_when_unhealthy:
        _check_reboot(settings, options["cluster"])
    if options["kind"]:
        end_with_starter()
    kinds = dispatchers_of(settings, options["cluster"], options.pop("kind"))
    if len(kinds) > 1 and not in_background:
        sys.exit(run_each_kind(settings, {one.kind.kind: one.nodes for one in kinds}, as_json=as_json))
    prepared = _prepare(settings, asks=True, dispatcher=next(iter(kinds), None), **options)
    print_folded(err, prepared.capabilities.sentence)
    for line in _plan_lines(prepared):
        print_folded(err, line)
    if prepared.stages and prepared.plan.why_empty:
        raise UserError(f"{prepared.plan.why_empty}; `matrix doctor` says what to fix")
    if not prepared.stages:
        # In stages a stack is downloaded when its turn comes, and has to have room then.
        prepared.plan.check_feasible()
        confirm(prepared.plan.download_gb, yes=yes)
    if in_background:
        start_in_background(settings, as_json=as_json)
        return
    again = settings.invocation.command(*typed_words())
    machine = machine_of(settings.root)
    terminal = terminal_to_outlive(settings, what="campaign")
    with (
        outliving(terminal),
        interruptible(terminal.is_closed),
        stay_awake("a campaign of matrix runs", _warn_of_sleep),
        noted_under_way(settings.results, machine, again) as others,
    ):
        warn(others)
        cells = list({planned.cell.id: planned.cell for planned in prepared.plan.runs}.values())
        with CampaignDisplay(err, cells, prepared.verdicts_here) as display:
            close_leftovers(prepared.bench, display)
            ended = run_campaign(
                prepared, display, lambda: reboot_when_unhealthy and reboots_left(settings.results, machine) > 0
            )
        try:
            _tell(ended, prepared, settings, machine, as_json=as_json)
        except (UserError, OSError) as untold:
            # What ended it, such as a full disk, may keep its answer from being written, too.
            raise (ended.error or untold) from None
    if ended.error:
        raise ended.error
    if ended.interrupted:
        done = f"{ended.done} runs" if ended.total is None else f"{ended.done} of {ended.total} runs"
        err.print(f"Interrupted: {done} are done; {CONTINUES}.")
        sys.exit(INTERRUPTED)
    host = prepared.bench.host
    unfinished = ended.conclusion.why == "exhausted" if ended.conclusion else ended.done != ended.total
    if reboot_when_unhealthy and unfinished and unhealthy_gpus(settings.results, host):
        executor = prepared.capabilities.executor
        reboot_and_resume(this_command(), Path.cwd(), settings.results, host.machine, executor)
    sys.exit(0 if ended.succeeded else 1)


@click.command("run-cell", cls=WithProgram)
@click.argument("cell", required=False, shell_complete=complete_cells)
@workload_options
@program_options
@click.option("--run-id", help="Id of the run; a run of that id that has its record is not run again.")
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
    """Run one cell once, watch it, and leave its record."""
    if request:
        sys.exit(run_request(settings, request.read()))
    if cell is None:
        raise click.MissingParameter(param_type="argument", param_hint="'CELL'")
    chosen = settings.matrix.cells[known(cell, settings.matrix.cells, "cell")]
    workload = chosen_workload(settings, "default", options)
    place = bench_options(settings, options)
    if print_command:
        echo(docker_command(place, chosen, workload))
        return
    with interruptible(), CampaignDisplay(err) as display:
        try:
            record = run_one(place, chosen, workload, run_id, display)
        except KeyboardInterrupt:
            # What became of the run was shown when it was recorded.
            sys.exit(INTERRUPTED)
    if as_json:
        echo(record.model_dump_json(indent=2, by_alias=True))
    else:
        echo(f"{record.intent.run_id}: {record.outcome}{f' ({record.diagnosis})' if record.diagnosis else ''}")
        echo(f"record in {settings.results.run_folder(record.intent.run_id)}")
    sys.exit(0 if record.outcome == "completed" else 1)


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("cell", shell_complete=complete_cells)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_settings
def execute(settings: Settings, cell: str, command: tuple[str, ...]) -> None:
    """Run `vpoc ...` by hand in a cell's environment: `matrix exec cpu-plain vpoc train --data merged.csv`.

    CELL `best` is the plain cell that this host would run first.
    """
    if cell != BEST:
        known(cell, settings.matrix.cells, "cell")
    with Steps(err) as steps:
        program, arguments, variables = command_in_cell(settings.matrix, cell, command, steps.step, settings.root)
    os.execve(program, arguments, variables)  # noqa: S606


def _tell(
    ended: CampaignResult, prepared: PreparedCampaign, settings: Settings, machine: str, *, as_json: bool
) -> None:
    """Print what a campaign found, however it ended, and keep it."""
    remember_answer(settings.results, machine, _answer(ended, prepared.bench, settings, machine))
    written = report_on(settings)
    if as_json:
        verdicts = verdicts_of_campaign(prepared, ended.campaign)
        print_json({**describe_campaign(ended, verdicts), "answer": written.answer.model_dump(mode="json")})
        return
    said = ended.isolation.sentence if ended.isolation else ended.hint
    print_lines([said] if said else [])
    print_answer(out, written.answer)
    echo(f"Records in {settings.results.runs}, report in {written.files[0]} and {written.files[1].name}")


def _answer(ended: CampaignResult, bench: Bench, settings: Settings, machine: str) -> LastAnswer:
    """Return what is to be remembered of a campaign; one that concluded nothing leaves the cell named before it."""
    following = _unfinished(ended, bench, settings)
    if ended.conclusion is None:
        return LastAnswer(last_answer(settings.results, machine).named, None, following)
    return LastAnswer(ended.conclusion.named, ended.conclusion.sentence, following)


def _warn_of_sleep(why: str) -> None:
    warn([f"nothing keeps this host from going to sleep ({why}); see to it that it does not"])


def _check_reboot(settings: Settings, cluster: str | None) -> None:
    if settings.simulated or cluster:
        meant = "the simulated host" if settings.simulated else "a node of the cluster"
        raise UserError(f"--reboot-when-unhealthy would reboot this machine, not {meant}; leave it out")
    check_reboot()


def _unfinished(ended: CampaignResult, bench: Bench, settings: Settings) -> NextCommand | None:
    """Return the command that continues what was interrupted, or what its time or a boot kept from its end.

    It is another one where the same would end as this one: without a base image, or a budget that holds a run.
    """
    words = typed_words()
    if ended.error:
        return NextCommand(command=settings.invocation.command(*words), why="continues this campaign")
    if bench.lacks_base and not ended.interrupted and not ended.succeeded:
        again = settings.invocation.command(*with_option(words, "--executor", "process"))
        return NextCommand(command=again, why=f"runs cells as processes: {bench.lacks_base}")
    if not ended.interrupted and not (ended.conclusion and ended.conclusion.continues):
        return None
    if ended.conclusion and (least := ended.conclusion.least_budget):
        again = settings.invocation.command(*with_option(words, "--budget", budget_in_words(least)))
        return NextCommand(command=again, why="has the least budget that lets something run")
    again = settings.invocation.command(*words)
    reboot = ended.conclusion is not None and ended.conclusion.why == "another-boot"
    why = "continues from these records, after a reboot" if reboot else "continues this campaign"
    if ended.conclusion and ended.conclusion.why == "exhausted" and not ended.done:
        why += ", once a stack can be made: what each lacks is said above"
    return NextCommand(command=again, why=why)


def _plan_lines(prepared: PreparedCampaign, *, wide: bool = False) -> list[str]:
    if prepared.stages and prepared.plan.why_empty:
        return [f"Plan: {prepared.plan.why_empty}"]
    if prepared.stages:
        return forecast_lines(forecast(prepared))
    first, *others = tables.plan_lines(prepared.plan, wide=wide)
    reach = reach_of(prepared)
    return [first, *([f"  goal: {reach}"] if reach else []), *others]


def _prepare(settings: Settings, **options: Any) -> PreparedCampaign:
    matrix, cells = settings.matrix, options["cells"]
    for cell in cells:
        known(cell, matrix.cells, "cell")
    selection = known(options["selection"] or DEFAULT_SELECTION, matrix.selections, "selection")
    if _in_stages(options) and (
        prepared := prepare_stages(
            bench_options(settings, options),
            _of_stages(matrix, options),
            selection,
            options["budget"] or BUDGET,
            lambda host: _may_use_screens(settings, host, **options),
        )
    ):
        return prepared
    if _in_stages(options):
        # Without a GPU there is the smoke stage alone, and it takes minutes.
        options["budget"] = None
    workload = stage_workload(settings, options) if options["stage"] else chosen_workload(settings, selection, options)
    chosen = [matrix.cells[cell] for cell in cells] or matrix.select(selection)
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
    )


def _may_use_screens(
    settings: Settings, host: HostFacts, *, use_screen_gpu: bool | None = None, asks: bool = False, **_: Any
) -> bool:
    """Return whether runs may use a GPU with a screen. A plan asks and notes nothing: else it is as of a run."""
    ask = partial(click.confirm, err=True) if asks and sys.stdin.isatty() else None
    return may_use(host, settings.results, use_screen_gpu, ask, notes=asks)


def _of_stages(matrix: Matrix, options: Mapping[str, Any]) -> Matrix:
    """Return the matrix with what its stages run: the lookback that was given, and programs of the user's own taken."""
    lookback, used = options["lookback"], {stage.workload for stage in matrix.stages.values()}

    def of_stage(workload: Workload) -> Workload:
        if workload.program or lookback is None:
            return taken(workload)
        return workload_with_lookback(workload, lookback, options)

    workloads = {name: of_stage(one) if name in used else one for name, one in matrix.workloads.items()}
    return matrix.model_copy(update={"workloads": workloads})


def _in_stages(options: Mapping[str, Any]) -> bool:
    """Return whether nothing was said of which runs to make."""
    said = ("cells", "selection", "stage", "until", "every", "repeats", "workload", "python", "app")
    return not any(options[name] for name in said)
