"""The commands that plan and run campaigns: `matrix plan` and `matrix run`."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from harness.base.command_words import own_words, with_option
from harness.base.errors import UserError
from harness.base.wording import many
from harness.campaign.answered import Command, LastAnswer, last_answer, remember_answer
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.plan import NOTHING_RUNS
from harness.campaign.campaign import Campaign
from harness.campaign.other_hosts.follow import CONTINUES
from harness.campaign.planning.forecast import (
    StageForecast,
    forecast,
    forecast_lines,
    left_out_lines,
    screen_lines,
    unhealthy_lines,
)
from harness.campaign.planning.prepare import PreparedCampaign
from harness.campaign.reboot import (
    await_gpus,
    check_reboot,
    gpus_at_work,
    reboot_and_resume,
    reboots_left,
    this_command,
)
from harness.campaign.recovery import close_leftovers
from harness.campaign.run_campaign import CampaignResult, run_campaign, verdicts_of_campaign
from harness.campaign.sequence.reach import reach_of
from harness.campaign.under_way import noted_under_way
from harness.cli.campaign_choice import campaign_options, prepare
from harness.cli.clusters import dispatchers_of, of_cluster
from harness.cli.describe import describe_campaign, describe_plan
from harness.cli.in_background import start_in_background, through_closed_terminal
from harness.cli.kinds import end_with_starter, run_each_kind
from harness.cli.program_options import WithProgram
from harness.cli.records import report_on
from harness.cli.shared import (
    INTERRUPTED,
    Settings,
    as_json,
    as_typed,
    confirm,
    err,
    out,
    pass_settings,
    print_json,
    print_lines,
    typed_words,
    warn,
)
from harness.evidence.gpus.health_log import unhealthy_gpus
from harness.host.awake import stay_awake
from harness.host.disk_use import has_room
from harness.host.fingerprint import machine_of
from harness.matrix.lint import mistakes
from harness.report.sections.of_program import answer_of_program
from harness.screen import tables
from harness.screen.answer import print_answer, print_next
from harness.screen.display import CampaignDisplay
from harness.screen.fitted import print_folded
from harness.screen.terminal import echo
from harness.search.conclusion import budget_in_words

DOCTOR_SAYS = "`matrix doctor` says what to fix"


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
        warn([f"{', '.join(other.nodes)}: of another host kind, with its own campaign; this plan is for the others"])
    prepared = prepare(settings, dispatcher=next(iter(kinds), None), **options)
    told = forecast(prepared) if prepared.stages else None
    if as_json:
        stages = {"stages": asdict(told)} if told else {}
        print_json({**describe_plan(prepared.plan, prepared.capabilities), **stages})
    else:
        print_folded(out, as_typed(prepared.capabilities.sentence))
        for line in _plan_lines(prepared, told, wide=wide):
            print_folded(out, as_typed(line))
        if prepared.plan.runs:
            print_next(out, _following(prepared, told, settings))


def _following(prepared: PreparedCampaign, told: StageForecast | None, settings: Settings) -> Command:
    if not (told or prepared.plan.fits):
        return Command(command=settings.invocation.command("clean"), why="lists what can be removed, and asks")
    own, others = own_words(typed_words()[1:])
    again = ("run", *(word for word in own if word != "--wide"), *others)
    if told and (least := told.least_budget):
        return _with_room(settings, again, least)
    room = "" if has_room(prepared.plan.run_bytes) else ", once the disk of --results has room for a run"
    return Command(command=settings.invocation.command(*again), why=f"runs this plan{room}")


@click.command(cls=WithProgram)
@campaign_options
@click.option("--yes", is_flag=True, help="Do not ask before a large download.")
@click.option(
    "--reboot-when-unhealthy",
    is_flag=True,
    help="Reboot and continue when a GPU is unhealthy, at most three times in 12 hours.",
)
@click.option(
    "--detach", "in_background", is_flag=True, help="Continue when this terminal closes; `matrix watch` attaches."
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

    Without arguments, on a host with GPUs: runs the stages of the matrix file, stack by stack, until one cell is shown
    to be good, for at most ten hours or --budget; without a GPU, each cell of the selection once.

    With `--app DIR -- COMMAND` a program of your own is run there, under the same supervision; its numbers are not
    checked, and its runs promote nothing.

    With cells or --selection: each once, or --repeats times. With `--until known-good` as few runs as it takes to find
    one reliable cell; with `--all` as many as it takes to judge every cell; both within --budget, if given.

    With --repeats, when a cell fails twice in a way that a GPU or the host can cause, at most 40 controls follow that
    tell cell, stack, GPU and host apart (`matrix isolate`).

    Exit status: 0 when every run completed (with --until or --all: when that was reached), 1 if not, 130 after Ctrl-C.
    """
    settings = of_cluster(settings, options["cluster"])
    if reboot_when_unhealthy:
        _check_reboot(settings, options["cluster"])
        await_gpus(settings.root, lambda lack: warn([lack]))
    if options["kind"]:
        end_with_starter()
    kinds = dispatchers_of(settings, options["cluster"], options.pop("kind"))
    if len(kinds) > 1 and not in_background:
        sys.exit(run_each_kind(settings, {one.kind.kind: one.nodes for one in kinds}, as_json=as_json))
    prepared = prepare(settings, asks=True, dispatcher=next(iter(kinds), None), **options)
    print_folded(err, prepared.capabilities.sentence)
    # If nothing is to be run, the error below says everything.
    if prepared.plan.runs:
        for line in _plan_lines(prepared, forecast(prepared) if prepared.stages else None):
            print_folded(err, as_typed(line))
    if prepared.stages and prepared.plan.why_empty:
        why = prepared.plan.why_empty
        raise UserError(f"{why}; {DOCTOR_SAYS}" if prepared.plan.host_excludes_cells else why)
    if not prepared.stages:
        # In stages each stack is downloaded when its turn comes; the free disk space is checked then.
        prepared.plan.check_feasible()
        confirm(prepared.plan.download_gb, yes=yes)
    if in_background:
        start_in_background(settings, as_json=as_json)
        return
    again = settings.invocation.command(*typed_words())
    machine = machine_of(settings.root)
    # The last campaign's suggestion is obsolete now, however this campaign ends.
    with suppress(UserError, OSError):
        remember_answer(settings.results, machine, LastAnswer(last_answer(settings.results, machine).named))
    with (
        through_closed_terminal(settings, what="campaign"),
        stay_awake("a campaign of matrix runs", _warn_of_sleep),
        noted_under_way(settings.results, machine, again) as note,
    ):
        warn(list(note.others))
        cells = list({planned.cell.id: planned.cell for planned in prepared.plan.runs}.values())
        with CampaignDisplay(err, cells, prepared.verdicts_here, note.doing, settings.invocation.command) as display:
            close_leftovers(prepared.bench, display)
            ended = run_campaign(
                prepared, display, lambda: reboot_when_unhealthy and reboots_left(settings.results, machine) > 0
            )
        try:
            _tell(ended, prepared, settings, machine, as_json=as_json)
        except (UserError, OSError) as untold:
            # The cause of the first error, such as a full disk, may also prevent writing the answer: report the first
            # one.
            raise (ended.error or untold) from None
    if ended.error:
        raise ended.error
    if ended.interrupted:
        done = many(ended.done, "run") if ended.total is None else f"{ended.done} of {ended.total} runs"
        err.print(f"Interrupted: {done} done; {CONTINUES}.")
        sys.exit(INTERRUPTED)
    host = prepared.bench.host
    unfinished = ended.conclusion.why == "exhausted" if ended.conclusion else ended.done != ended.total
    if reboot_when_unhealthy and unfinished and unhealthy_gpus(settings.results, host):
        where = this_command(), Path.cwd(), settings.results, host.machine
        reboot_and_resume(*where, prepared.capabilities.executor, ended.campaign, gpus_at_work(host.gpus))
    sys.exit(0 if ended.succeeded else 1)


def _tell(
    ended: CampaignResult, prepared: PreparedCampaign, settings: Settings, machine: str, *, as_json: bool
) -> None:
    """Print and store the result of a campaign, however it ended; it is printed even if the disk is full."""
    files: tuple[Path, ...] = ()
    unwritten: UserError | OSError | None = None
    last = _answer(ended, prepared, settings, machine)
    built = report_on(settings, last)
    answer = built.report.answer
    try:
        remember_answer(settings.results, machine, last)
        files = built.write(settings.results)
    except (UserError, OSError) as error:
        unwritten = error
    if as_json:
        ended = replace(ended, error=ended.error or unwritten)
        verdicts = verdicts_of_campaign(prepared, ended.campaign)
        print_json({**describe_campaign(ended, verdicts), "answer": answer.model_dump(mode="json")})
    else:
        said = ended.isolation.sentence if ended.isolation else ended.hint
        print_lines([as_typed(said)] if said else [])
        if ended.done or ended.conclusion:
            print_answer(out, answer)
        else:
            # Nothing new was found. Print only the next command, so that the reason does not scroll out of sight.
            print_next(out, answer.next)
    if unwritten:
        raise unwritten
    if not as_json:
        made = [f"records in {settings.results.runs}"] if ended.done or ended.conclusion else []
        where = ", ".join([*made, f"report in {files[0]} and {files[1].name}"])
        echo(f"{where[0].upper()}{where[1:]}")


def _answer(ended: CampaignResult, prepared: PreparedCampaign, settings: Settings, machine: str) -> LastAnswer:
    """Return what to remember of a campaign.

    The cell that the answer named before stays if this campaign concluded nothing, or ran a program of the user's own.
    """
    following = _unfinished(ended, prepared.bench, settings)
    named, found = last_answer(settings.results, machine).named, ended.conclusion
    of_program = prepared.plan.workload.program is not None
    if found and not of_program:
        named = found.named
    sentence = found.sentence if found else None
    if of_program and not found and (rows := Campaign(ended.campaign, settings.results).finished_runs()):
        sentence, step = answer_of_program(rows, settings.invocation)
        following = following or step
    return LastAnswer(named, sentence, following, of_program)


def _warn_of_sleep(why: str) -> None:
    awake = "sudo systemctl mask --runtime sleep.target suspend.target"
    warn([f"this host may go to sleep ({why}); `{awake}` keeps it awake until it is booted again"])


def _check_reboot(settings: Settings, cluster: str | None) -> None:
    if settings.simulated or cluster:
        meant = "the simulated host" if settings.simulated else "a node of the cluster"
        raise UserError(f"--reboot-when-unhealthy would reboot this machine, not {meant}; leave it out")
    check_reboot()


def _unfinished(ended: CampaignResult, bench: Bench, settings: Settings) -> Command | None:
    """Return the command that continues a campaign which was interrupted, or lacked time or a boot; None if it ended.

    If the same command would end in the same way, it is a changed one: one without containers where a base image is
    missing, or one with a budget that has room for a run.
    """
    own, others = own_words(typed_words())
    # A person reads the command, also in `matrix status` later.
    words = (*(word for word in own if word != "--json"), *others)
    if ended.error:
        return Command(command=settings.invocation.command(*words), why="continues this campaign")
    if bench.lacks_base and not ended.interrupted and not ended.succeeded:
        again = settings.invocation.command(*with_option(words, "--executor", "process"))
        return Command(command=again, why=f"runs cells as processes: {bench.lacks_base}")
    nothing = ended.conclusion is None and not (ended.done or ended.interrupted or ended.succeeded)
    if not (ended.interrupted or nothing) and not (ended.conclusion and ended.conclusion.continues):
        return None
    if ended.conclusion and (least := ended.conclusion.least_budget):
        return _with_room(settings, words, least)
    again = settings.invocation.command(*words)
    ended_by = ended.conclusion and ended.conclusion.why
    why = {
        "another-boot": "continues from these records, after a reboot",
        "out-of-time": "continues from these records, with the whole budget again",
    }.get(ended_by or "", "continues this campaign")
    if nothing or (ended_by == "exhausted" and not ended.done):
        why += ", once a stack can be made, and says what each one lacks"
    elif ended_by == "exhausted":
        why += " with what was left out or could not run; all else had its turn"
    return Command(command=again, why=why)


def _with_room(settings: Settings, words: Sequence[str], least_budget: float) -> Command:
    again = settings.invocation.command(*with_option(words, "--budget", budget_in_words(least_budget)))
    return Command(command=again, why="has the least budget that lets something run")


def _plan_lines(prepared: PreparedCampaign, told: StageForecast | None, *, wide: bool = False) -> list[str]:
    if prepared.plan.why_empty:
        following = DOCTOR_SAYS if prepared.stages else NOTHING_RUNS
        return [
            f"Plan: {prepared.plan.why_empty}",
            *([f"  next: {following}"] if prepared.plan.host_excludes_cells else []),
        ]
    data = prepared.bench.data
    mistaken = tables.mistake_lines(mistakes(planned.cell for planned in prepared.plan.runs))
    unhealthy = unhealthy_lines(prepared.bench)
    if told:
        return [*forecast_lines(told), *unhealthy, *([f"  data: {data.name}"] if data else []), *mistaken]
    first, *others = tables.plan_lines(prepared.plan, wide=wide)
    reach = reach_of(prepared)
    used = {gpu for planned in prepared.plan.runs for gpu in planned.gpus}
    others += mistaken + screen_lines(
        {gpu.index: gpu.displays for gpu in prepared.bench.host.gpus if gpu.index in used and gpu.displays}
    )
    others += [*left_out_lines(prepared.screened, len(prepared.bench.gpus)), *unhealthy]
    return [first, *([f"  goal: {reach}"] if reach else []), tables.data_line(prepared.plan.workload, data), *others]
