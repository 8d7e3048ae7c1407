"""Simulate cells whose faults are known, and what their verdicts say; writes docs/evidence/verdict-figures.md.

The real code (`harness.evidence.verdicts`) counts runs and gives verdicts; only the runs are simulated.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from statistics import median

from scipy.stats import binomtest

from benchmarks.pages import simulation
from harness.base.paths import CHECKOUT
from harness.evidence.files.run_files import HealthStep
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.totals import Totals, totals_of
from harness.evidence.verdicts.verdict import reaches, tier_of
from harness.matrix.cells import Verdicts

PAGE = CHECKOUT / "docs" / "evidence" / "verdict-figures.md"
THRESHOLDS = Verdicts()
HOUR = 3600.0
RUN_HOURS = 0.5
RUNS = 160
CELLS = 25
WRONG_GOAL = 0.05
# Runs of one boot; the runs after these belong to another boot.
RUNS_OF_A_BOOT = 12
MINUTE = 60.0


@dataclass(frozen=True)
class Fate:
    """How one run goes: whether it starts, after how many hours of training it fails, and how it leaves its GPU."""

    starts: bool = True
    fails_after: float = inf
    resets: bool = False
    leaves_gpu_unhealthy: bool = False


Fates = Callable[[random.Random], Iterator[Fate]]


@dataclass(frozen=True)
class World:
    """Cells whose runs go as `fates` says; `wrong`: whether calling a cell known-good would be wrong."""

    name: str
    fates: Fates
    wrong: bool
    cells: int = 1


@dataclass(frozen=True)
class Campaign:
    """A campaign on one cell or several: whether a cell was called known-good, and after how many runs and hours.

    `longest`: the longest training for which the claim holds, in hours.
    """

    promoted: bool
    runs: int
    hours: float
    longest: float


def constant(start_rate: float, mtbf: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs that start with the probability `start_rate`, and then fail at a constant rate."""
    while True:
        yield Fate(chance.random() < start_rate, inf if mtbf == inf else chance.expovariate(1 / mtbf))


def resetting(share: int, chance: random.Random) -> Iterator[Fate]:
    """Yield runs of which one in `share` resets the GPU."""
    while True:
        yield from (Fate() for _ in range(share - 1))
        yield Fate(fails_after=chance.uniform(0, RUN_HOURS), resets=True)


def poisoning(share: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs that all complete, and leave the GPU unhealthy with the probability `share`."""
    while True:
        yield Fate(leaves_gpu_unhealthy=chance.random() < share)


def ageing(sound: float, rate: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs that never fail in the first `sound` hours, and then fail at this rate per hour."""
    while True:
        yield Fate(fails_after=sound + chance.expovariate(rate))


def bursting(size: int, mtbf: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs that fail in bursts of `size`, minutes apart; on average one fails in `mtbf` hours."""
    until = chance.expovariate(1 / (mtbf * size))
    while True:
        if until > RUN_HOURS:
            until -= RUN_HOURS
            yield Fate()
        else:
            yield Fate(fails_after=until)
            yield from (Fate(fails_after=chance.uniform(0, 5 * MINUTE / HOUR)) for _ in range(size - 1))
            until = chance.expovariate(1 / (mtbf * size))


def by_boot(mtbf: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs whose failure rate is drawn for each boot: gamma with shape 1/2 and the mean 1 / `mtbf`."""
    while True:
        rate = chance.gammavariate(0.5, 2 / mtbf)
        yield from (Fate(fails_after=chance.expovariate(rate) if rate else inf) for _ in range(RUNS_OF_A_BOOT))


def one_bad_gpu(mtbf: float, chance: random.Random) -> Iterator[Fate]:
    """Yield runs on two GPUs in turn: on one they fail at a constant rate, on the other never."""
    while True:
        yield Fate()
        yield Fate(fails_after=chance.expovariate(1 / mtbf))


GOOD, LINE = 0.995, 0.9
WORLDS = (
    World("sound: 99.5 % of starts, MTBF 100 h", partial(constant, GOOD, 100.0), wrong=False),
    World("sound: 99.5 % of starts, MTBF 20 h", partial(constant, GOOD, 20.0), wrong=False),
    World("hangs: MTBF 3 h, at the line", partial(constant, 1.0, 3.0), wrong=True),
    World("hangs: MTBF 2 h", partial(constant, 1.0, 2.0), wrong=True),
    World("hangs: MTBF 1 h", partial(constant, 1.0, 1.0), wrong=True),
    World("fails to start: 90 % of starts, at the line", partial(constant, LINE, inf), wrong=True),
    World("fails to start: 85 % of starts", partial(constant, 0.85, inf), wrong=True),
    World("both at the line", partial(constant, LINE, 3.0), wrong=True),
    World("resets the GPU every second run", partial(resetting, 2), wrong=True),
    World("resets the GPU every fifth run (MTBF 2.3 h)", partial(resetting, 5), wrong=True),
    World("completes, and poisons the GPU every time", partial(poisoning, 1.0), wrong=True),
    World("completes, and poisons the GPU one time in five", partial(poisoning, 0.2), wrong=True),
    World(
        f"{CELLS} cells on a host that fails all alike: MTBF 1 h", partial(constant, LINE, 1.0), wrong=True, cells=CELLS
    ),
    World(f"best of {CELLS} cells, all at the line", partial(constant, LINE, 3.0), wrong=True, cells=CELLS),
    World("one bad GPU of two: MTBF 1 h there", partial(one_bad_gpu, 1.0), wrong=True),
)
BROKEN = (
    World(
        "no failure in the first hour, then two an hour; runs of half an hour", partial(ageing, 1.0, 2.0), wrong=True
    ),
    World("bursts of 2, one failure in 3 h in the mean", partial(bursting, 2, 3.0), wrong=True),
    World("bursts of 5, one failure in 3 h in the mean", partial(bursting, 5, 3.0), wrong=True),
    World("a rate for each boot, one failure in 3 h in the mean", partial(by_boot, 3.0), wrong=True),
)


def a_row() -> Row:
    """Return a run that completed and was verified, in a container."""
    values = dict.fromkeys(Row._fields)
    values |= {"run_id": "r", "cell": "cell", "outcome": "completed", "machine": "m", "boot_id": "b", "gpus": "[0]"}
    values |= {
        "started": 0.0,
        "finished": 0.0,
        "first_step": 1,
        "verified": 1,
        "exposure_seconds": RUN_HOURS * HOUR,
        "detail": "",
        "beside": "[]",
    }
    return Row(**values)  # type: ignore[arg-type]


ROW = a_row()
BAD = HealthStep.model_validate(
    {
        "machine": "m",
        "boot_id": "b",
        "run_id": "r",
        "environment": "e",
        "when": "after-completion",
        "check": "probe",
        "gpu": 0,
        "good": False,
        "detail": "hung",
        "at": 1.0,
        "seconds": 9.0,
    }
)


def run_of(fate: Fate) -> Totals:
    """Return what one run shows, as the real code counts it."""
    failed = not fate.starts or fate.fails_after < RUN_HOURS
    outcome = "host-fault" if fate.resets else "hung" if failed else "completed"
    lasted = min(fate.fails_after, RUN_HOURS) * HOUR if fate.starts else 0.0
    row = ROW._replace(outcome=outcome, first_step=fate.starts, exposure_seconds=lasted)
    return totals_of([row], count_runs([row], [BAD] if fate.leaves_gpu_unhealthy else []))


def simulate(world: World, seed: int) -> Campaign:
    """Run a campaign: each cell run after run, judged after each, until it is known-good or no runs are left."""
    chance = random.Random(seed)
    confidence = 1 - (1 - THRESHOLDS.confidence) / world.cells
    made = [_one_cell(world, chance, confidence) for _ in range(world.cells)]
    good = [one for one in made if one.promoted]
    best = good[0] if good else made[0]
    return replace(best, runs=sum(one.runs for one in made))


def _one_cell(world: World, chance: random.Random, confidence: float) -> Campaign:
    total, passed = Totals(), 0
    for number, fate in enumerate(islice(world.fates(chance), RUNS), 1):
        one = run_of(fate)
        total = Totals(
            started=total.started + one.started,
            starts=number,
            failures=total.failures + one.failures,
            lives=(*total.lives, *one.lives),
            boots=1 + (number > RUNS_OF_A_BOOT),
        )
        passed += one.started - one.failures
        known_good = tier_of(passed, number, total, THRESHOLDS) == "known-good"
        if known_good and reaches(total, "known_good", THRESHOLDS, confidence):
            in_order = replace(total, lives=tuple(sorted(total.lives, reverse=True)))
            return Campaign(True, number, total.hours, in_order.longest)
    return Campaign(False, RUNS, total.hours, 0.0)


def lines(worlds: Sequence[World], campaigns: int, pool: Executor) -> Iterator[str]:
    """Yield the table of these worlds."""
    yield "| world | campaigns | called known-good | runs: median | hours: median | claimed up to: median |"
    yield "|---|---|---|---|---|---|"
    for world in worlds:
        if sys.stderr.isatty():
            sys.stderr.write(f"{campaigns} campaigns of {world.name}\n")
        made = list(pool.map(partial(simulate, world), range(campaigns), chunksize=10))
        good = [one for one in made if one.promoted]
        share = len(good) / campaigns
        most = binomtest(len(good), campaigns, alternative="less").proportion_ci(0.95).high
        told = f"{share:.1%} (< {most:.1%})" if world.wrong else f"{share:.1%}"
        longest = f"{median(one.longest for one in good):.1f} h" if good else "-"
        hours, runs = (median(getattr(one, name) for one in good or made) for name in ("hours", "runs"))
        yield f"| {world.name} | {campaigns:,} | {told} | {runs:,.0f} | {hours:.1f} | {longest} |"


PAGE_TEXT = """\
# Figures on verdicts

`make bench-policy` wrote this page. It is a simulation: the real code counts the runs and decides the bounds and
tiers, but the runs are synthetic. Each run has {run_hours:g} h of training. A cell has {runs} runs at most, and its
verdict is looked at after every run. A boot lasts {of_a_boot} runs, and there are two boots. Nothing here is about a
GPU.
[Verdicts](../verdicts.md#what-a-verdict-takes) says what counts, and what a verdict takes.

## Rates that are constant

A cell is rightly called known-good if more than {rate:g} of its starts succeed and its mean time between failures is
above {mtbf:g} h. In worlds where this is not true, less than {goal:.0%} of the campaigns may call a cell known-good;
the brackets give the upper bound of that share with 95 % confidence. With {cells} cells, the allowed error of each
cell is divided by {cells}. Runs and hours are counted until a cell was called known-good, or to the end if none was.

{constant}

## Where the model of the bounds breaks

The bounds assume independent failures at a constant rate. If failures are different, a verdict is wrong more often,
so these figures belong beside every claim:

{broken}

- **Ageing.** A verdict claims nothing about trainings longer than the third-longest run ("claimed up to"): within
  that length the first world never fails. It says nothing about ten hours, in which nearly every training fails.
- **Bursts** make the mean rate look better between them. They cost restarts, all of which are counted.
- **Rates by boot.** A verdict requires two boots, which are few: if the rate differs by boot, more boots would have
  to be seen.
"""


def page(campaigns: int, pool: Executor) -> str:
    """Simulate, and return the page."""
    return PAGE_TEXT.format(
        run_hours=RUN_HOURS,
        runs=RUNS,
        of_a_boot=RUNS_OF_A_BOOT,
        rate=THRESHOLDS.known_good,
        mtbf=THRESHOLDS.mtbf_hours.known_good,
        goal=WRONG_GOAL,
        cells=CELLS,
        constant="\n".join(lines(WORLDS, campaigns, pool)),
        broken="\n".join(lines(BROKEN, campaigns, pool)),
    )


def main() -> None:
    """Simulate, and write the page."""
    simulation(__doc__, PAGE, "--campaigns", "simulated campaigns of a world", page, 1000)


if __name__ == "__main__":
    main()
