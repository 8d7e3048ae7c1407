"""The forecast of a campaign in stages, before anything is downloaded: what the campaign takes and what it can show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from harness.base.durations import span
from harness.base.errors import UserError
from harness.base.wording import download_in_words, listed
from harness.campaign.bench.bench import Bench
from harness.campaign.planning.prepare import PreparedCampaign, setup_seconds_of
from harness.campaign.planning.stage_evidence import StageEvidence
from harness.campaign.reboot import check_reboot
from harness.doctor.compatibility import is_excluded, window_of
from harness.environments.capabilities import StackRoom, stack_by_stack
from harness.environments.executors.pids import pids_limit
from harness.evidence.gpus.health_log import unhealthy_gpus
from harness.evidence.verdicts.missing import missing_to
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Threshold
from harness.evidence.verdicts.words import threshold_in_words
from harness.host.disk_use import limits_in_words
from harness.host.gpus.gpu_reset import may_reset
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack
from harness.matrix.stages import endurance, exploring
from harness.search.conclusion import BUDGET, budget_in_words
from harness.search.stages.search import StageSearch

_GPUS = {1: "the GPU", 2: "both GPUs"}
TIERS: tuple[Threshold, ...] = ("good", "candidate")
# The share of a run's time that counts as training.
SHARE_TRAINING = 0.9


@dataclass(frozen=True)
class StageForecast:
    """The needs of a campaign in stages, and what it can show. Seconds are assumed until runs on the host replace them.

    Attributes:
        first_answer_seconds: the time until it is known whether the first stack trains on one GPU, if nothing hangs.
        tier_seconds: the time that each tier takes for a cell that never fails, from the first download on.
        reachable: the highest tier that the budget reaches; None for none.
        screens: the connectors with a screen, by GPU.
        side_by_side: runs on one GPU each run at the same time.
        screened: GPUs that no run uses, because a screen is connected to them.
        least_budget: the seconds that the next run takes, if the budget is too small for any run.
        earlier_runs: the runs of earlier campaigns that count for this one.
        verifying: the stack in which runs are verified, made before all others; None if there is none.
        pids: the most processes and threads of any run; None if nothing limits them.
        takes: the requirements of each tier, in words.
        driver: the stacks that the host's driver does not support; None if it supports all, or that is unknown.
    """

    stacks: tuple[StackRoom, ...]
    place: str
    free_gb: float | None
    budget_seconds: float
    first_answer_seconds: float
    tier_seconds: Mapping[Threshold, float]
    reachable: str | None
    may_reset: bool
    may_reboot: bool
    screens: dict[int, tuple[str, ...]]
    gpus: int
    side_by_side: bool
    screened: tuple[int, ...]
    least_budget: float | None
    earlier_runs: int
    verifying: StackRoom | None
    pids: int | None
    run_bytes: int
    takes: Mapping[Threshold, str]
    driver: str | None


def forecast(prepared: PreparedCampaign) -> StageForecast:
    """Return the forecast of a prepared campaign in stages."""
    search, bench = prepared.stages, prepared.bench
    if search is None:
        raise AssertionError("the campaign has no stages")
    budget = (prepared.plan.goal.budget if prepared.plan.goal else None) or float("inf")
    able = prepared.capabilities
    first_of_all = [bench.verifying] if bench.verifying else []
    rooms = stack_by_stack([*first_of_all, *(prepared.matrix.stacks[name] for name in search.order)], able)
    stacks = rooms[len(first_of_all) :]
    first = _first_answer(search)
    takes = {tier: first + _seconds_to(tier, prepared.matrix) for tier in TIERS}
    gpus = [gpu for gpu in bench.host.gpus if gpu.index in bench.gpus]
    seen = StageEvidence(bench, prepared.matrix).read()
    workloads = {stage.workload for stage in prepared.matrix.stages.values()}
    of_stages = (run for run in seen.runs if run.row.stack in search.cells and run.row.workload in workloads)
    return StageForecast(
        stacks=stacks,
        place=prepared.capabilities.place,
        free_gb=prepared.plan.free_gb,
        budget_seconds=budget,
        first_answer_seconds=first,
        tier_seconds={**takes},
        reachable=next((tier for tier in TIERS if takes[tier] <= budget), None),
        may_reset=all(may_reset(gpu, bench.root) for gpu in gpus),
        may_reboot=_may_reboot(bench.root),
        screens={gpu.index: gpu.displays for gpu in gpus if gpu.displays},
        gpus=len(gpus),
        side_by_side=search.host.side_by_side,
        screened=search.host.screened,
        least_budget=search.least_budget(seen, budget),
        earlier_runs=sum(run.count.counts for run in of_stages),
        verifying=rooms[0] if first_of_all else None,
        pids=pids_limit(able.cores, max(1, len(gpus))) if able.executor == "docker" else None,
        run_bytes=able.run_bytes,
        takes={tier: threshold_in_words(tier, prepared.matrix.verdicts) for tier in TIERS},
        driver=outside_window(
            bench.host.driver, [prepared.matrix.stacks[one.stack] for one in stacks if one.fits is not False]
        ),
    )


def outside_window(module: str | None, stacks: Iterable[Stack]) -> str | None:
    """Return which stacks the host's driver is not supported with; None if there are none, or that is unknown."""
    window = window_of(module) if module else None
    outside = [one.name for one in stacks if is_excluded(module, one)]
    are = "is" if len(outside) == 1 else "are"
    said = f"{listed(outside)} {are} run all the same, but failures there say little about ROCm"
    return f"{window.in_words}; {said}" if window and outside else None


def forecast_lines(told: StageForecast) -> list[str]:
    """Return a forecast in a few lines."""
    fitting = [one for one in told.stacks if one.fits is not False]
    names = ", ".join(one.stack for one in fitting)
    first = fitting[0] if fitting else None
    used = "one GPU" if told.screened and told.gpus == 1 else _all_of(told.gpus)
    good = f" ({told.takes['good']})" if "good" in told.takes else ""
    lines = [f"Plan: stack by stack until one is good{good} on {used}, at most {span(told.budget_seconds)}"]
    if least := told.least_budget:
        which = "next" if told.earlier_runs else "first"
        lines.append(f"  budget: no run fits; the {which} one needs {budget_in_words(least)} ({BUDGET})")
    lines.append(f"  stacks, in this order: {names or 'none'}")
    if told.driver:
        lines.append(f"  driver: {told.driver}")
    also = [told.verifying] if told.verifying and told.verifying.download_gb else []
    if first:
        before = "".join(f"{one.download_gb:.1f} GB for {one.stack}, in which each run is verified, " for one in also)
        of_all = sum(one.download_gb for one in [*also, *fitting])
        needed = f"{before}{download_in_words(first.download_gb)} for the first stack, {of_all:.1f} GB if all"
        lines.append(f"  download: {f'{needed} have their turn' if of_all else download_in_words(0)}")
    free = "unknown" if told.free_gb is None else f"{told.free_gb:.0f} GB free"
    disk = sum(one.disk_gb for one in [*also, *fitting])
    lines.append(f"  disk: {f'{disk:.0f} GB at most' if disk else 'nothing more'} on {told.place}, {free}")
    lines.append(f"  each run: {limits_in_words(told.run_bytes, told.pids)}")
    if left_out := [one for one in told.stacks if one.fits is False]:
        needed = ", ".join(f"{one.stack} ({one.disk_gb:.0f} GB)" for one in left_out)
        lines.append(f"  no room{' beside those' if fitting else ''} for: {needed}; free some, or they are left out")
    takes = ", ".join(f"{span(seconds)} to `{tier}`" for tier, seconds in told.tier_seconds.items())
    reach = (
        f"{span(told.budget_seconds)} can reach {f'`{told.reachable}`' if told.reachable else 'no verdict but `seen`'}"
    )
    if told.earlier_runs:
        lines.append(f"  earlier runs: {told.earlier_runs} that count here; the campaign continues from there")
    if fitting:
        begun = "from nothing, the " if told.earlier_runs else ""
        lines.append(
            f"  time: {begun}first answer, on one GPU, after about {span(told.first_answer_seconds)}; a cell that "
            f"never fails takes {takes}; {reach} (assumed: 100 Mbit/s, and the minutes of each stage in matrix.yaml)"
        )
    lines.append(f"  a hung GPU: {_hung(told)}")
    if told.side_by_side:
        lines.append("  runs of one GPU each are made side by side, one on each GPU")
    return [*lines, *screen_lines(told.screens), *left_out_lines(told.screened, told.gpus)]


def left_out_lines(screened: Iterable[int], gpus: int) -> list[str]:
    """Return a line for each GPU that no run may use because it has a screen; `gpus`: how many others there are."""
    left_out = list(screened)
    everything = _all_of(gpus + len(left_out))
    return [
        f"  a screen is connected to GPU {gpu}: no run uses it, so what trains on {everything} stays unknown "
        "(--use-screen-gpu, with make ARGS=--use-screen-gpu; or move the screen to the processor's own graphics)"
        for gpu in left_out
    ]


def unhealthy_lines(bench: Bench) -> list[str]:
    """Return a line for each GPU that takes no runs because it failed its last probe."""
    unhealthy = {} if bench.dispatcher else unhealthy_gpus(bench.results, bench.host)
    return [
        f"  GPU {gpu} takes no runs until it passes a probe, which is made first; its last one failed: {why}"
        for gpu, why in sorted(unhealthy.items())
        if gpu in bench.gpus
    ]


def screen_lines(screens: Mapping[int, Sequence[str]]) -> list[str]:
    """Return warnings about screens on GPUs that runs use, because a hang may take the screen with it."""
    return [
        f"  a screen is connected to GPU {gpu} ({', '.join(connectors)}): a hang may freeze it; use the processor's "
        "own graphics for it, if it has any"
        for gpu, connectors in screens.items()
    ]


def _all_of(gpus: int) -> str:
    return _GPUS.get(gpus, f"all {gpus} GPUs")


def _hung(told: StageForecast) -> str:
    if told.may_reset:
        return "this user may reset it, where no screen is connected to it"
    if told.may_reboot:
        return "this user may not reset it, but reboot: --reboot-when-unhealthy continues after that"
    return "this user may neither reset it nor reboot: it is lost for the rest of the campaign (`matrix doctor`)"


def _first_answer(search: StageSearch) -> float:
    """Return the seconds until the first stack is known to train on one GPU."""
    first = next(iter(search.order), None)
    setup = 0.0
    if first and first in search.host.setup_seconds:
        setup = setup_seconds_of(search.matrix.stacks[first])
    runs = {"one": 1, "each": 1 if search.host.side_by_side else len(search.host.gpus)}
    stages = (stage for stage in exploring(search.matrix.stages) if stage.devices != "all")
    return setup + sum(stage.minutes * 60 * runs[stage.devices] for stage in stages)


def _seconds_to(tier: Threshold, matrix: Matrix) -> float:
    """Return the seconds of runs that show a tier if nothing fails: long runs for hours, short runs for starts."""
    lasting, short = endurance(matrix.stages), exploring(matrix.stages)[-1]
    missing = missing_to(Totals(), tier, matrix.verdicts, matrix.verdicts.confidence)
    if lasting is None:
        return missing.starts * short.minutes * 60
    long_runs = ceil(missing.hours / (SHARE_TRAINING * lasting.minutes / 60))
    return (long_runs * lasting.minutes + max(0, missing.starts - long_runs) * short.minutes) * 60


def _may_reboot(root: Path) -> bool:
    try:
        check_reboot(root)
    except UserError:
        return False
    return True
