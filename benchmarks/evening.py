"""Simulates evenings of `make matrix-test` on a host with two GPUs; writes docs/evidence/evening-figures.md.

What is run next, what counts and what a verdict takes is the real code (`harness.search`, `harness.evidence`), on the
project's own matrix.yaml; clock, downloads and runs are synthetic, in worlds whose truth is known.
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from pathlib import Path
from statistics import median

from benchmarks.verdicts import BAD, ROW
from harness.base.paths import CHECKOUT
from harness.campaign.prepare import ASSUMED_BUILD_SECONDS, setup_seconds_of
from harness.evidence.index import Row
from harness.evidence.run_files import HealthStep
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.totals import totals_of
from harness.evidence.verdicts.verdict import reaches
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix
from harness.search.stage_runs import SeenRun, SeenRuns, Setting, StageHost, StageRun, family
from harness.search.stage_search import StageEnd, StageSearch

PAGE = CHECKOUT / "docs" / "evidence" / "evening-figures.md"
HOUR, MINUTE = 3600.0, 60.0
BUDGET = 10 * HOUR
GPUS = (0, 1)
BESIDE_TRAINING = 80.0
TRAINING = {"quick": 15.0, "standard": 75.0, "endurance": 75 * MINUTE, "immediate": 90.0, "full": 900.0}
USUAL_TRAINING = 900.0
# A rank that does not get through its first step, and one that stalls later, on a GPU about which little is known yet.
FIRST_STEP_LIMIT, STEP_LIMIT = 300.0, 180.0
CRASH_SHARE = 0.4
RESET_SECONDS = 120.0
ANSWER_WITHIN, ANSWER_GB = 90 * MINUTE, 8.0


@dataclass(frozen=True)
class Behaviour:
    """How runs go: the share that starts, hours between failures, hours that are sound, share that spoils its GPU."""

    starts: float = 0.995
    mtbf: float = 100.0
    sound_hours: float = 0.0
    poisons: float = 0.0


SOUND, BROKEN = Behaviour(), Behaviour(starts=0.01, mtbf=0.02)
Acts = Callable[[StageRun], Behaviour]


@dataclass(frozen=True)
class Answer:
    """The answer of an evening: what is good on two GPUs, whether every stack had its turn, which GPUs are bad."""

    named: Setting | None
    settled: bool
    bad_gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class World:
    """A truth: how runs behave, and which answers are right."""

    acts: Acts
    is_right: Callable[[Answer], bool]


@dataclass(frozen=True)
class Evening:
    """A simulated evening. `wrong`: something was called good that is not. Times in seconds."""

    right: bool
    wrong: bool
    seconds: float
    one_gpu_seconds: float | None
    one_gpu_gb: float | None
    runs: int


@cache
def the_matrix() -> Matrix:
    """Return the project's own matrix."""
    return load_matrix(CHECKOUT / "matrix.yaml")


@cache
def stacks() -> tuple[str, ...]:
    """Return the ROCm stacks of the default selection, in its order."""
    matrix = the_matrix()
    names = dict.fromkeys(cell.stack.name for cell in matrix.select("default"))
    return tuple(name for name in names if matrix.stacks[name].accelerator == "rocm")


def on_two(run: StageRun) -> bool:
    """Return whether a run uses both GPUs."""
    return len(run.gpus) > 1


def unnamed(answer: Answer) -> bool:
    """Right where nothing is good on two GPUs: nothing is named, no GPU is blamed, and every stack had its turn."""
    return answer == Answer(None, settled=True)


def named(is_right: Callable[[Setting], bool]) -> Callable[[Answer], bool]:
    """Right where what is named is."""
    return lambda answer: answer.named is not None and is_right(answer.named)


def one_stack(chance: random.Random) -> World:
    """One stack of nine works on two GPUs, in whatever way; all work on one."""
    only = chance.choice(stacks())
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.stack.name == only else BROKEN,
        named(lambda setting: setting.cell.stack.name == only),
    )


def only_no_p2p(_: random.Random) -> World:
    """Of all there is to try on two GPUs only the preset no-p2p helps, on every stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.preset.name == "no-p2p" else BROKEN,
        named(lambda setting: setting.cell.preset.name == "no-p2p"),
    )


def only_averaging(_: random.Random) -> World:
    """Collectives fail whatever is set; averaging works on every stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.workload.strategy == "averaging" else BROKEN,
        named(lambda setting: setting.strategy == "averaging"),
    )


def one_bad_gpu(chance: random.Random) -> World:
    """All that uses one of the GPUs fails."""
    bad = chance.choice(GPUS)
    return World(
        lambda run: Behaviour(0.3, 0.1) if bad in run.gpus else SOUND,
        lambda answer: answer.named is None and answer.bad_gpus == (bad,),
    )


def hangs_after_an_hour(_: random.Random) -> World:
    """Every training hangs minutes after its first hour."""
    return World(lambda _run: Behaviour(mtbf=0.1, sound_hours=1.0), unnamed)


def only_7(_: random.Random) -> World:
    """Only ROCm 7.x trains."""
    return World(
        lambda run: SOUND if (run.cell.stack.rocm or "").startswith("7.") else Behaviour(0.1, 0.05),
        named(lambda setting: (setting.cell.stack.rocm or "").startswith("7.")),
    )


def poisoning_stack(_: random.Random) -> World:
    """The first stack completes, and seven runs of ten leave a GPU on which the next run would fail."""
    first = stacks()[0]
    return World(
        lambda run: Behaviour(poisons=0.7) if run.cell.stack.name == first else SOUND,
        named(lambda setting: setting.cell.stack.name != first),
    )


def failing_host(_: random.Random) -> World:
    """Every run may fail, whatever is run: six starts of ten, and a failure in 24 minutes of training."""
    return World(lambda _run: Behaviour(0.6, 0.4), unnamed)


def nothing_on_two(_: random.Random) -> World:
    """Everything works on one GPU, and nothing on two."""
    return World(lambda run: BROKEN if on_two(run) else SOUND, unnamed)


def two_good_one_flaky(chance: random.Random) -> World:
    """Three stacks work on two GPUs; one of them fails once in 48 minutes."""
    flaky, *good = chance.sample(stacks(), 3)

    def acts(run: StageRun) -> Behaviour:
        name = run.cell.stack.name
        if not on_two(run) or name in good:
            return SOUND
        return Behaviour(0.9, 0.8) if name == flaky else BROKEN

    return World(acts, named(lambda setting: setting.cell.stack.name in good))


WORLDS: Mapping[str, Callable[[random.Random], World]] = {
    "one stack works on two GPUs": one_stack,
    "only no-p2p helps": only_no_p2p,
    "only averaging works on two": only_averaging,
    "one GPU is bad": one_bad_gpu,
    "all hangs after an hour": hangs_after_an_hour,
    "only ROCm 7.x trains": only_7,
    "the first stack poisons its GPU": poisoning_stack,
    "the host fails everything": failing_host,
    "everything on one GPU, nothing on two": nothing_on_two,
    "two stacks are good, one is flaky": two_good_one_flaky,
}


@dataclass
class Clock:
    """A simulated evening: the time, the runs that were made, the stacks that were downloaded."""

    world: World
    chance: random.Random
    now: float = 0.0
    gigabytes: float = 0.0
    rows: list[Row] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    steps: list[HealthStep] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    ready_at: dict[str, float] = field(default_factory=dict)

    def run(self, run: StageRun) -> bool:
        """Make a run, and those beside it; returns whether any of their processes succeeded."""
        self.set_up(run.cell.stack.name)
        began, ends = self.now, []
        passed, ids = False, [f"r{len(self.rows) + place:04}" for place in range(1 + len(run.beside))]
        for one, run_id in zip((run, *run.beside), ids, strict=True):
            self.now = began
            passed = self._one(one, run_id, [other for other in ids if other != run_id]) or passed
            ends.append(self.now)
        self.now = max(ends)
        return passed

    def _one(self, run: StageRun, run_id: str, beside: Sequence[str]) -> bool:
        behaviour, started = self.world.acts(run), self.now
        hours = TRAINING.get(run.workload.name, USUAL_TRAINING) / HOUR
        begins = self.chance.random() < behaviour.starts
        fails_after = behaviour.sound_hours + self.chance.expovariate(1 / behaviour.mtbf)
        lasted = min(fails_after, hours) if begins else 0.0
        passed = begins and fails_after >= hours
        crashed = self.chance.random() < CRASH_SHARE
        found = 0.0 if passed or crashed else STEP_LIMIT if begins else FIRST_STEP_LIMIT
        self.now += BESIDE_TRAINING + lasted * HOUR + found
        poisoned = self.chance.random() < behaviour.poisons
        if poisoned or not (passed or crashed):
            self.now += RESET_SECONDS
        self._record(run, run_id, started, lasted, begins=begins, passed=passed, crashed=crashed)
        self.rows[-1] = replace(self.rows[-1], beside=json.dumps(beside))
        if poisoned:
            self.steps.append(BAD.model_copy(update={"run_id": run_id, "gpu": run.gpus[0], "at": self.now}))
        return passed

    def seen(self) -> SeenRuns:
        """Return what the records say."""
        counts = count_runs(self.rows, self.steps)
        return SeenRuns.of(
            SeenRun(row, counts[row.run_id], tuple(json.loads(row.gpus)), self.phases[row.run_id]) for row in self.rows
        )

    def set_up(self, stack: str) -> None:
        """Download and build a stack, the first time; wait for the rest of that where it was begun before."""
        self.prepare(stack)
        self.now = max(self.now, self.ready_at[stack])

    def prepare(self, stack: str) -> None:
        """Begin to download and build a stack, while runs go on."""
        if stack not in self.ready_at:
            self.made.add(stack)
            self.gigabytes += the_matrix().stacks[stack].budget.download
            # One at a time.
            self.ready_at[stack] = max(self.now, *self.ready_at.values(), 0.0) + setup_seconds_of(
                the_matrix().stacks[stack]
            )

    def _record(
        self, run: StageRun, run_id: str, started: float, lasted: float, *, begins: bool, passed: bool, crashed: bool
    ) -> None:
        outcome = "completed" if passed else "failed" if crashed else "hung"
        self.phases[run_id] = "teardown" if passed else "step" if begins else "first-step"
        self.rows.append(
            replace(
                ROW,
                run_id=run_id,
                cell=run.cell.id,
                stack=run.cell.stack.name,
                preset=run.cell.preset.name,
                workload=run.workload.name,
                family=family(run.workload, len(run.gpus)),
                outcome=outcome,
                diagnosis=None if passed else "crash" if crashed else "no-progress",
                gpus=json.dumps(sorted(run.gpus)),
                started=started,
                finished=self.now,
                first_step=begins,
                exposure_seconds=lasted * HOUR,
            )
        )


def evening(world_name: str, seed: int) -> Evening:
    """Simulate an evening of `make matrix-test`."""
    chance = random.Random(f"{world_name} {seed}")
    world = WORLDS[world_name](chance)
    clock = Clock(world, chance)
    cells = {name: [cell for cell in the_matrix().select("default") if cell.stack.name == name] for name in stacks()}
    setup = {name: setup_seconds_of(the_matrix().stacks[name]) for name in stacks()}
    host = StageHost(GPUS, GPUS, True, setup, side_by_side=True)
    search = StageSearch(the_matrix(), cells, host)
    answered: tuple[float, float] | None = None
    while True:
        seen = clock.seen()
        left = {stack: seconds for stack, seconds in setup.items() if stack not in clock.made}
        search = replace(search, host=replace(host, setup_seconds=left))
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
    good = best.setting if best and best.is_good and len(best.gpus) > 1 else None
    return _judged(world, Answer(good, not decided.untried, decided.bad_gpus), clock, answered)


def in_turn(world_name: str, seed: int) -> Evening:
    """Simulate the first version's way, told to use both GPUs: every cell of the selection in turn."""
    chance = random.Random(f"{world_name} {seed}")
    world = WORLDS[world_name](chance)
    clock = Clock(world, chance)
    matrix = the_matrix()
    workload = matrix.workloads["standard"].model_copy(update={"strategy": "ddp"})
    for name in stacks():
        clock.set_up(name)
    settings = [
        Setting(cell, "ddp") for name in stacks() for cell in matrix.select("default") if cell.stack.name == name
    ]
    number = 0
    while clock.now < BUDGET:
        setting = settings[number % len(settings)]
        number += 1
        clock.run(StageRun("in-turn", setting, workload, GPUS, number, ""))
    seen = clock.seen()
    for setting in settings:
        runs = seen.of_claim(setting, workload, len(GPUS))
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


GOAL, WORLDS_TO_PASS = 0.9, 9


def shares(made: Sequence[Evening]) -> tuple[float, float]:
    """Return the shares of evenings whose answer is right, and of those that named something else."""
    return sum(one.right for one in made) / len(made), sum(one.wrong for one in made) / len(made)


def lines(seeds: int, pool: Executor) -> Iterator[str]:
    """Yield the table: every world, in stages and in turn."""
    yield "| world | right | another named | hours, 9 of 10 within | runs | trains on one GPU | in turn: right |"
    yield "|---|---|---|---|---|---|---|"
    for name in WORLDS:
        if sys.stderr.isatty():
            sys.stderr.write(f"{seeds} evenings: {name}\n")
        made = list(pool.map(partial(evening, name), range(seeds), chunksize=5))
        turns = list(pool.map(partial(in_turn, name), range(seeds), chunksize=5))
        right, wrong = shares(made)
        hours = sorted(one.seconds / HOUR for one in made)
        most = hours[min(len(hours) - 1, int(0.9 * len(hours)))]
        yield (
            f"| {name} | {right:.0%} | {wrong:.0%} | {median(hours):.1f}, {most:.1f} "
            f"| {median(one.runs for one in made):.0f} | {_first_answer(made)} | {shares(turns)[0]:.0%} |"
        )


def _first_answer(made: Sequence[Evening]) -> str:
    """Return when a cell first trained on one GPU, what was downloaded then, and how often both are within the goal."""
    answers = [(one.one_gpu_seconds or inf, one.one_gpu_gb or inf) for one in made]
    in_time = sum(seconds <= ANSWER_WITHIN and gigabytes <= ANSWER_GB for seconds, gigabytes in answers)
    seconds, gigabytes = (median(column) for column in zip(*answers, strict=True))
    said = "never" if seconds == inf else f"{seconds / MINUTE:.0f} min, {gigabytes:.1f} GB"
    return f"{said} ({in_time / len(made):.0%} in time)"


PAGE_TEXT = """\
# Figures on an evening of `make matrix-test`

`make bench-evening` wrote this page. It is a simulation: which run comes next, what counts, and what a verdict takes is
the real code, on the project's own matrix.yaml and its {stacks} ROCm stacks; clock, downloads and runs are synthetic,
on a host with two GPUs. Nothing here is about a GPU. [Running and verdicts](../running.md#in-stages) says what is
decided, and how.

{seeds} evenings of each world, of {budget:g} hours at most. **Right**: the tier `good` is reached on two GPUs by a cell
that is, and it is named; or, where none is, none is named and every stack had its turn. **Another named**: one is
called good that is not. **Trains on one GPU**: when the first cell did that on real training, and how much was
downloaded by then; in time is within {within:.0f} minutes and {gigabytes:g} GB. **In turn**: the first version's way,
told to train on both GPUs: all stacks at once, then each cell of the selection in turn, round after round. It has no
time to show anything to be good, and so is right only where nothing is.

{table}

The goal: {goal:.0%} right in {to_pass} of the {worlds} worlds.

## What is assumed

A download of 100 Mbit/s and {build:.0f} minutes to build a stack; {beside:.0f} s of a run beside training; of training
{quick:.0f} s (`quick`), {standard:.0f} s (`standard`), {endurance:.0f} minutes (`endurance`). A hang is found after
{first:.0f} s at the first step, after {step:.0f} s later; {crashes:.0%} of failures are crashes. A GPU that hangs is
reset in {reset:.0f} s: where the user may not, an evening ends at its first hang. What is sound starts {starts:.1%} of
the time and runs {mtbf:.0f} h between failures.

Where everything hangs after an hour each stack costs that hour, and ten hours are too short for all of them: the
evening ends with those that had their turn, and says so.
"""


def page(seeds: int, pool: Executor) -> str:
    """The page, as Markdown."""
    return PAGE_TEXT.format(
        stacks=len(stacks()),
        seeds=seeds,
        budget=BUDGET / HOUR,
        within=ANSWER_WITHIN / MINUTE,
        gigabytes=ANSWER_GB,
        table="\n".join(lines(seeds, pool)),
        goal=GOAL,
        to_pass=WORLDS_TO_PASS,
        worlds=len(WORLDS),
        build=ASSUMED_BUILD_SECONDS / MINUTE,
        beside=BESIDE_TRAINING,
        quick=TRAINING["quick"],
        standard=TRAINING["standard"],
        endurance=TRAINING["endurance"] / MINUTE,
        first=FIRST_STEP_LIMIT,
        step=STEP_LIMIT,
        crashes=CRASH_SHARE,
        reset=RESET_SECONDS,
        starts=SOUND.starts,
        mtbf=SOUND.mtbf,
    )


def main() -> None:
    """Simulate, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="simulated evenings of a world")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path, default=PAGE)
    given = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        text = page(given.seeds, pool)
    given.output.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{given.output}: {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
