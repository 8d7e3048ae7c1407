"""Simulates evenings of `make matrix-test` on a host with two GPUs; writes docs/evidence/evening-figures.md.

What is run next, what counts and what a verdict takes is the real code (`harness.search`, `harness.evidence`), on the
project's own matrix.yaml; clock, downloads and runs are synthetic, in worlds whose truth is known.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median

from benchmarks.verdicts import BAD, ROW
from harness.base.paths import CHECKOUT
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
# Assumed, and said so on the page.
MEGABYTES_PER_SECOND = 12.5
BUILD_SECONDS = 240.0
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
IsRight = Callable[[Setting | None, bool], bool]


@dataclass(frozen=True)
class World:
    """A truth: how runs behave, and which answers are right: the setting named, and whether every stack had its turn."""

    acts: Acts
    is_right: IsRight


@dataclass(frozen=True)
class Evening:
    """A simulated evening. `named`: what is called good on two GPUs. Times in seconds, None where it never came to it."""

    right: bool
    wrong: bool
    settled: bool
    named: str | None
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


def unnamed(named: Setting | None, settled: bool) -> bool:
    """Right where nothing is good on two GPUs: nothing is named, and every stack had its turn."""
    return named is None and settled


def one_stack(chance: random.Random) -> World:
    """One stack of nine works on two GPUs, in whatever way; all work on one."""
    only = chance.choice(stacks())
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.stack.name == only else BROKEN,
        lambda named, _: named is not None and named.cell.stack.name == only,
    )


def only_no_p2p(_: random.Random) -> World:
    """Of all there is to try on two GPUs only the preset no-p2p helps, on every stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.cell.preset.name == "no-p2p" else BROKEN,
        lambda named, _: named is not None and named.cell.preset.name == "no-p2p",
    )


def only_averaging(_: random.Random) -> World:
    """Collectives fail whatever is set; averaging works on every stack."""
    return World(
        lambda run: SOUND if not on_two(run) or run.workload.strategy == "averaging" else BROKEN,
        lambda named, _: named is not None and named.strategy == "averaging",
    )


def one_bad_gpu(chance: random.Random) -> World:
    """What uses one of the GPUs fails."""
    bad = chance.choice(GPUS)
    return World(lambda run: Behaviour(0.3, 0.1) if bad in run.gpus else SOUND, unnamed)


def hangs_after_an_hour(_: random.Random) -> World:
    """Every training hangs minutes after its first hour."""
    return World(lambda _run: Behaviour(mtbf=0.1, sound_hours=1.0), unnamed)


def only_7(_: random.Random) -> World:
    """Only ROCm 7.x trains."""
    return World(
        lambda run: SOUND if (run.cell.stack.rocm or "").startswith("7.") else Behaviour(0.1, 0.05),
        lambda named, _: named is not None and (named.cell.stack.rocm or "").startswith("7."),
    )


def poisoning_stack(_: random.Random) -> World:
    """The first stack completes, and seven runs of ten leave a GPU on which the next run would fail."""
    first = stacks()[0]
    return World(
        lambda run: Behaviour(poisons=0.7) if run.cell.stack.name == first else SOUND,
        lambda named, _: named is not None and named.cell.stack.name != first,
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

    return World(acts, lambda named, _: named is not None and named.cell.stack.name in good)


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

    def run(self, run: StageRun) -> bool:
        """Make a run; returns whether its process succeeded."""
        self._set_up(run.cell.stack.name)
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
        run_id = f"r{len(self.rows):04}"
        self._record(run, run_id, started, lasted, begins=begins, passed=passed, crashed=crashed)
        if poisoned:
            self.steps.append(BAD.model_copy(update={"run_id": run_id, "gpu": run.gpus[0], "at": self.now}))
        return passed

    def seen(self) -> SeenRuns:
        """Return what the records say."""
        counts = count_runs(self.rows, self.steps)
        return SeenRuns.of(
            SeenRun(row, counts[row.run_id], tuple(json.loads(row.gpus)), self.phases[row.run_id]) for row in self.rows
        )

    def _set_up(self, stack: str) -> None:
        if stack not in self.made:
            self.made.add(stack)
            self.gigabytes += the_matrix().stacks[stack].budget.download
            self.now += setup_seconds(stack)

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


def setup_seconds(stack: str) -> float:
    """Return what it takes to download and build a stack."""
    return the_matrix().stacks[stack].budget.download * 1000 / MEGABYTES_PER_SECOND + BUILD_SECONDS


def evening(world_name: str, seed: int) -> Evening:
    """Simulate an evening of `make matrix-test`."""
    chance = random.Random(f"{world_name} {seed}")
    world = WORLDS[world_name](chance)
    clock = Clock(world, chance)
    cells = {name: [cell for cell in the_matrix().select("default") if cell.stack.name == name] for name in stacks()}
    host = StageHost(GPUS, GPUS, True, {name: setup_seconds(name) for name in stacks()})
    search = StageSearch(the_matrix(), cells, host)
    answered: tuple[float, float] | None = None
    while True:
        decided = search.next(clock.seen(), BUDGET - clock.now)
        if isinstance(decided, StageEnd):
            break
        passed = clock.run(decided)
        if answered is None and passed and decided.stage == "one-gpu":
            answered = clock.now, clock.gigabytes
    best = decided.best
    named = best.setting if best and best.is_good and len(best.gpus) > 1 else None
    return _judged(world, named, decided.why != "out-of-time", clock, answered)


def in_turn(world_name: str, seed: int) -> Evening:
    """Simulate the first version's way, told to use both GPUs: every cell of the selection in turn, round after round."""
    chance = random.Random(f"{world_name} {seed}")
    world = WORLDS[world_name](chance)
    clock = Clock(world, chance)
    matrix = the_matrix()
    workload = matrix.workloads["standard"].model_copy(update={"strategy": "ddp"})
    for name in stacks():
        clock._set_up(name)
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
            return _judged(world, setting, True, clock, None)
    return _judged(world, None, False, clock, None)


def _judged(
    world: World, named: Setting | None, settled: bool, clock: Clock, answered: tuple[float, float] | None
) -> Evening:
    right = world.is_right(named, settled)
    return Evening(
        right=right,
        wrong=named is not None and not right,
        settled=settled,
        named=f"{named.cell.id} {named.strategy}" if named else None,
        seconds=clock.now,
        one_gpu_seconds=answered[0] if answered else None,
        one_gpu_gb=answered[1] if answered else None,
        runs=len(clock.rows),
    )


if __name__ == "__main__":
    from collections import Counter

    n = int(sys.argv[1])
    for w in WORLDS:
        b = time.monotonic()
        es = [evening(w, s) for s in range(n)]
        print(
            f"{w:40} right {sum(e.right for e in es) / n:.0%} wrong {sum(e.wrong for e in es) / n:.0%} settled {sum(e.settled for e in es) / n:.0%} h {median(e.seconds for e in es) / 3600:.1f} runs {median(e.runs for e in es)} one {max((e.one_gpu_seconds or 1e9) for e in es) / 60:.0f} min {max((e.one_gpu_gb or 1e9) for e in es):.1f} GB {time.monotonic() - b:.1f}s",
            Counter(e.named for e in es if not e.right).most_common(3),
        )
