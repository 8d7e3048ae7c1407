"""Simulate evenings of `make matrix-test`: in stages, and with every cell in turn as in the first version."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.evening.clock import HOUR, Clock
from benchmarks.evening.worlds import HINDERED, LITTLE_DISK, WORLDS, Answer, World, stacks, the_matrix
from harness.campaign.planning.prepare import setup_seconds_of
from harness.evidence.verdicts.totals import totals_of
from harness.evidence.verdicts.verdict import reaches
from harness.search.stages.runs import Setting, StageHost, StageRun
from harness.search.stages.search import StageEnd, StageSearch

BUDGET = 10 * HOUR
ALL_WORLDS = {**WORLDS, **HINDERED, **LITTLE_DISK}


@dataclass(frozen=True)
class Evening:
    """The result of a simulated evening; `wrong`: something was called good that is not; times in seconds."""

    right: bool
    wrong: bool
    seconds: float
    one_gpu_seconds: float | None
    one_gpu_gb: float | None
    runs: int


def evening(world_name: str, seed: int) -> Evening:
    """Simulate an evening of `make matrix-test`."""
    chance = random.Random(f"{world_name} {seed}")
    world = ALL_WORLDS[world_name](chance)
    clock = Clock(world, chance)
    cells = {n: [cell for cell in the_matrix().select("default") if cell.stack.name == n] for n in world.stacks}
    setup = {name: setup_seconds_of(the_matrix().stacks[name]) for name in stacks()}
    host = StageHost(world.gpus, world.gpus, setup, side_by_side=True, screened=world.screened)
    search = StageSearch(the_matrix(), cells, host)
    answered: tuple[float, float] | None = None
    while True:
        seen = clock.seen()
        left = {stack: seconds for stack, seconds in setup.items() if stack not in clock.made}
        healthy = tuple(gpu for gpu in world.gpus if gpu not in clock.lost)
        search = replace(search, host=replace(host, healthy=healthy, setup_seconds=left))
        decided = search.next(seen, BUDGET - clock.now)
        if isinstance(decided, StageEnd):
            break
        clock.set_up(decided.cell.stack.name)
        if following := search.to_prepare(decided, seen):
            clock.prepare(following)
        passed = clock.run(decided)
        if answered is None and passed and decided.stage == "one-gpu":
            answered = clock.now, clock.gigabytes
    best = decided.best
    good = best.setting if best and best.is_good and best.gpus == world.gpus else None
    return _judged(world, Answer(good, not decided.untried, decided.bad_gpus), clock, answered)


def in_turn(world_name: str, seed: int) -> Evening:
    """Simulate an evening of the first version, set to use both GPUs: every cell of the selection in turn."""
    chance = random.Random(f"{world_name} {seed}")
    world = ALL_WORLDS[world_name](chance)
    clock = Clock(world, chance)
    matrix = the_matrix()
    strategy: Literal["ddp", "single"] = "ddp" if len(world.gpus) > 1 else "single"
    workload = matrix.workloads["standard"].model_copy(update={"strategy": strategy})
    for name in stacks():
        clock.set_up(name)
    settings = [
        Setting(cell, strategy) for name in stacks() for cell in matrix.select("default") if cell.stack.name == name
    ]
    number = 0
    while clock.now < BUDGET and not clock.lost:
        setting = settings[number % len(settings)]
        number += 1
        clock.run(StageRun("in-turn", setting, workload, world.gpus, number, ""))
    seen = clock.seen()
    for setting in settings:
        runs = seen.of_claim(setting, workload, len(world.gpus))
        totals = totals_of([run.row for run in runs], {run.row.run_id: run.count for run in runs})
        if reaches(totals, "good", matrix.verdicts):
            return _judged(world, Answer(setting, settled=True), clock, None)
    return _judged(world, Answer(None, settled=number >= len(settings)), clock, None)


def _judged(world: World, answer: Answer, clock: Clock, answered: tuple[float, float] | None) -> Evening:
    right = world.is_right(answer)
    return Evening(
        right=right,
        wrong=answer.named is not None and not right,
        seconds=clock.now,
        one_gpu_seconds=answered[0] if answered else None,
        one_gpu_gb=answered[1] if answered else None,
        runs=len(clock.rows),
    )
