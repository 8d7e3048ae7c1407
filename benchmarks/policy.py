"""Simulate the choice of the next run, on cells with known pass rates; writes docs/evidence/policy-figures.md.

The real code (`harness.search`, `harness.evidence.verdicts`) decides; only the runs are simulated.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, log
from statistics import median, quantiles

from scipy.stats import binomtest

from benchmarks.pages import simulation
from harness.base.paths import CHECKOUT
from harness.matrix.cells import Verdicts
from harness.search.goal import Goal
from harness.search.schedule import Candidate, CandidateStatus, End, EndReason, Tally, next_run, status_of

PAGE = CHECKOUT / "docs" / "evidence" / "policy-figures.md"
STACKS, PRESETS = 8, 5
CELLS = STACKS * PRESETS
RATES = (0.5, 0.8, 0.9, 0.95, 0.99)
THRESHOLDS = Verdicts()
RATE, CONFIDENCE = THRESHOLDS.known_good, THRESHOLDS.confidence
# Passes without a failure that show, with 95 % confidence and one look at the end, a rate above .9 and above .95.
FIXED, FIXED_MORE = 29, 59
WRONG_GOAL = 0.05
SETTLE_CONFIDENCE = 0.9
RUN_SECONDS, BUDGET_SECONDS = 120.0, 8 * 3600.0
RATES_OF = f"true pass rates of the {CELLS} cells"
# Worlds in which a campaign stops only after thousands of runs, so that only this share of campaigns is simulated.
HARD = ("all .8", "all .85", "all .89", "all .9")
HARD_SHARE = 0.12


@dataclass(frozen=True)
class World:
    """Cells with their true pass rates, and the cause of failure of those that have one."""

    rates: Mapping[Candidate, float]
    causes: Mapping[Candidate, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """A simulated campaign: the runs made, why it ended, and the true rates of cells by their final status."""

    runs: int
    why: EndReason
    stood: Mapping[CandidateStatus, tuple[float, ...]]

    @property
    def wrong(self) -> bool:
        """True if a cell was called known-good whose true rate is not above the line."""
        return any(rate <= RATE for rate in self.stood.get("known-good", ()))

    @property
    def found(self) -> bool:
        """True if any cell was called known-good."""
        return bool(self.stood.get("known-good"))


def cells() -> list[Candidate]:
    """Return every stack with every preset."""
    names = [(f"stack{n}", f"preset{m}") for n in range(STACKS) for m in range(PRESETS)]
    return [Candidate(f"{stack}-{preset}", stack, preset, "gfx1100") for stack, preset in names]


def shuffled(rates: Sequence[float], chance: random.Random) -> World:
    """Return a world with these rates, as many as there are cells, in random order."""
    return World(dict(zip(cells(), chance.sample(list(rates), CELLS), strict=True)))


def broken_stacks(chance: random.Random) -> World:
    """Return a world in which five of eight stacks lack code for the GPU, and one preset fails half of the time."""
    broken = set(chance.sample(range(STACKS), 5))
    all_cells = cells()
    without_code = {one for one in all_cells if int(one.stack.removeprefix("stack")) in broken}
    preset = chance.choice(all_cells).preset
    rates = {one: 0.0 if one in without_code else 0.5 if one.preset == preset else 0.99 for one in all_cells}
    return World(rates, dict.fromkeys(without_code, "missing-arch"))


def simulate(world: World, goal: Goal, seed: int) -> Simulated:
    """Let the schedule choose runs, and let chance decide how they end."""
    chance = random.Random(seed)
    candidates = list(world.rates)
    seconds = {one.cell: RUN_SECONDS for one in candidates} if goal.budget else {}
    tallies: dict[Candidate, Tally] = {}
    runs = 0
    while True:
        left = goal.budget - runs * RUN_SECONDS if goal.budget else None
        decision = next_run(candidates, tallies, goal, seed, seconds, left)
        if isinstance(decision, End):
            break
        runs += 1
        one = decision.candidate
        passed = chance.random() < world.rates[one]
        tallies[one] = _after(tallies.get(one, Tally()), None if passed else world.causes.get(one, "crash"))
    stood: dict[CandidateStatus, list[float]] = {}
    for one, rate in world.rates.items():
        stood.setdefault(status_of(tallies.get(one, Tally()), goal), []).append(rate)
    return Simulated(runs, decision.why, {name: tuple(rates) for name, rates in stood.items()})


def _after(tally: Tally, cause: str | None) -> Tally:
    if cause is None:
        return Tally(tally.passes + 1, tally.runs + 1, tally.diagnoses)
    return Tally(tally.passes, tally.runs + 1, {**tally.diagnoses, cause: tally.diagnoses.get(cause, 0) + 1})


def alone(rate: float, _chance: random.Random) -> World:
    """Return a world with one cell."""
    return World({cells()[0]: rate})


def many(make: Callable[[random.Random], World], goal: Goal, seed: int) -> Simulated:
    """Simulate one campaign in a world made from the seed."""
    return simulate(make(random.Random(f"world {seed}")), goal, seed)


Make = Callable[[random.Random], World]
MIXTURES: Mapping[str, Make] = {
    "eight each of .5, .8, .9, .95, .99": partial(shuffled, RATES * STACKS),
    "39 of .5, one of .99": partial(shuffled, (0.5,) * 39 + (0.99,)),
    "30 of .5, eight of .8, two of .99": partial(shuffled, (0.5,) * 30 + (0.8,) * 8 + (0.99,) * 2),
    "20 of .8, 20 of .95": partial(shuffled, (0.8,) * 20 + (0.95,) * 20),
    "five stacks without code for the GPU, one bad preset, the rest .99": broken_stacks,
}
ALIKE: Mapping[str, Make] = {f"all {rate:g}".replace("0.", "."): partial(shuffled, (rate,) * CELLS) for rate in RATES}
# Rates just below the threshold, which are the hardest to distinguish from rates above it.
BELOW: Mapping[str, Make] = {
    "all .85": partial(shuffled, (0.85,) * CELLS),
    "all .89": partial(shuffled, (0.89,) * CELLS),
}
FIND = Goal(RATE, CONFIDENCE, among=CELLS)
UNDIVIDED = Goal(RATE, CONFIDENCE, among=1)
SETTLE = Goal(RATE, SETTLE_CONFIDENCE, every=True)


class Bench:
    """Simulates campaigns on several cores, and names them on a terminal."""

    def __init__(self, pool: Executor, campaigns: int) -> None:
        self._pool = pool
        self._campaigns = campaigns

    def campaigns(self, make: Make, goal: Goal, share: float = 1.0) -> list[Simulated]:
        """Simulate campaigns in worlds of the seeds 0, 1, ...; `share`: of the usual number, for slow worlds."""
        count = max(2, round(self._campaigns * share))
        if sys.stderr.isatty():
            sys.stderr.write(f"{count} campaigns of {make}\n")
        return list(self._pool.map(partial(many, make, goal), range(count), chunksize=5))


def table(*columns: str) -> Iterator[str]:
    """Yield the head of a table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"


def search_lines(bench: Bench) -> Iterator[str]:
    """Yield the table of the search for one known-good cell, in every world."""
    yield from table(
        RATES_OF, "campaigns", "found one", "wrong", "runs: median", "9 of 10 within", f"of {FIXED * CELLS:,}"
    )
    for name, make in {**MIXTURES, **ALIKE, **BELOW}.items():
        made = bench.campaigns(make, FIND, share=HARD_SHARE if name in HARD else 1)
        runs = [one.runs for one in made]
        found = sum(one.found for one in made) / len(made)
        yield (
            f"| {name} | {len(made):,} | {found:.0%} | {_wrong(made)} | {median(runs):,.0f} | {_most(runs):,.0f} "
            f"| {median(runs) / (FIXED * CELLS):.0%} |"
        )


def undivided_lines(bench: Bench) -> Iterator[str]:
    """Yield the table of campaigns in which each cell has the whole error probability to itself."""
    yield from table(RATES_OF, "campaigns", "found one", "wrong", "runs: median")
    mixture = next(iter(MIXTURES))
    for name, make in {mixture: MIXTURES[mixture], "all .8": ALIKE["all .8"], **BELOW}.items():
        made = bench.campaigns(make, UNDIVIDED, share=HARD_SHARE if name in HARD else 1)
        found = sum(one.found for one in made) / len(made)
        yield f"| {name} | {len(made):,} | {found:.0%} | {_wrong(made)} | {median(one.runs for one in made):,.0f} |"


def settle_lines(bench: Bench) -> Iterator[str]:
    """Yield the table of `--all` on one cell of each rate."""
    shown = ("shown above .9", "shown below .9", "stopped", "wrong")
    yield from table("true pass rate", "campaigns", *shown, "runs: median", "9 of 10 within")
    for rate in RATES:
        campaigns = bench.campaigns(partial(alone, rate), SETTLE)
        stood = Counter(name for one in campaigns for name in one.stood)
        wrong = sum(len(list(wrong_claims(one))) for one in campaigns)
        shares = (stood["known-good"], stood["ruled-out"], stood["undecided"], wrong)
        columns = " | ".join(f"{count / len(campaigns):.1%}" for count in shares)
        runs = [one.runs for one in campaigns]
        yield f"| {rate} | {len(campaigns):,} | {columns} | {median(runs):,.0f} | {_most(runs):,.0f} |"


def budget_lines(bench: Bench) -> Iterator[str]:
    """Yield the table of what eight hours show, at two minutes a run."""
    yield from table(
        RATES_OF, "campaigns", "`--until`: found", "wrong", "`--all`: settled, mean", "known-good", "wrong claims"
    )
    for name, make in MIXTURES.items():
        found = bench.campaigns(make, replace(FIND, budget=BUDGET_SECONDS), share=0.5)
        settled = bench.campaigns(make, replace(SETTLE, budget=BUDGET_SECONDS), share=0.5)
        good = sum(len(one.stood.get("known-good", ())) for one in settled)
        claims = good + sum(len(one.stood.get("ruled-out", ())) for one in settled)
        wrong = sum(len(list(wrong_claims(one))) for one in settled)
        yield (
            f"| {name} | {len(found):,} | {sum(one.found for one in found) / len(found):.0%} | {_wrong(found)} "
            f"| {claims / len(settled):.1f} of {CELLS} | {good / len(settled):.1f} | {wrong / max(1, claims):.1%} |"
        )


def wrong_claims(campaign: Simulated) -> Iterator[float]:
    """Yield the true rates of cells with a wrong claim; at a rate equal to the threshold, either claim is wrong."""
    yield from (rate for rate in campaign.stood.get("known-good", ()) if rate <= RATE)
    yield from (rate for rate in campaign.stood.get("ruled-out", ()) if rate >= RATE)


def _wrong(campaigns: Sequence[Simulated]) -> str:
    """Return the share of campaigns with a false known-good cell, and its upper bound with 95 % confidence."""
    wrong = sum(one.wrong for one in campaigns)
    most = binomtest(wrong, len(campaigns), alternative="less").proportion_ci(0.95).high
    return f"{wrong / len(campaigns):.1%} (< {most:.1%})"


def _most(runs: Sequence[int]) -> float:
    return quantiles(runs, n=10)[-1]


PAGE_TEXT = """\
# Figures on choosing the next run

`make bench-policy` wrote this page. It is a simulation: the schedule and the bounds are the real code, but the runs are
simulated, with cells whose true pass rate is known. Nothing here is about a GPU.
[Running](../running.md#a-goal---until-known-good---all) explains how the next run is chosen.

There are {cells} cells: eight stacks with five presets. A cell is wrongly called known-good if its true pass rate is
not above {rate}; this must happen in less than {goal:.0%} of the campaigns. The brackets give the upper bound of that
share with 95 % confidence, for the number of campaigns that were simulated.

## `--until known-good`

For comparison: {fixed} runs of each cell, {all_fixed:,} in all, are the fewest that can show a pass rate above .9
with 95 % confidence, if they are looked at only at the end and all of them pass. {more} runs of each cell
({all_more:,}) show a rate above .95. Neither number allows for there being {cells} cells; with that allowance, which
the search makes, {same} runs of each cell ({all_same:,}) are needed. If no cell is above .9, the runs are counted
until all cells were stopped.

{search}

## If the allowed error were not divided among the cells

The same simulation, with 95 % confidence required of each cell by itself:

{undivided}

## `--all --confidence {settle_confidence}`

Each cell gets its own claim, so one cell is simulated alone. At a true pass rate of .9, both claims are wrong.

{settle}

## `--budget 8h`, at {minutes:.0f} minutes a run

{budget}
"""


def page(bench: Bench) -> str:
    """Simulate, and return the page as Markdown."""
    same = ceil(log(1 - FIND.of_each) / log(RATE))
    return PAGE_TEXT.format(
        cells=CELLS,
        rate=RATE,
        goal=WRONG_GOAL,
        fixed=FIXED,
        all_fixed=FIXED * CELLS,
        more=FIXED_MORE,
        all_more=FIXED_MORE * CELLS,
        same=same,
        all_same=same * CELLS,
        search="\n".join(search_lines(bench)),
        undivided="\n".join(undivided_lines(bench)),
        settle_confidence=SETTLE_CONFIDENCE,
        settle="\n".join(settle_lines(bench)),
        minutes=RUN_SECONDS / 60,
        budget="\n".join(budget_lines(bench)),
    )


def main() -> None:
    """Simulate, and write the page."""
    about = "simulated campaigns of a row, and of hard ones an eighth"
    simulation(__doc__, PAGE, "--campaigns", about, lambda campaigns, pool: page(Bench(pool, campaigns)), 1000)


if __name__ == "__main__":
    main()
