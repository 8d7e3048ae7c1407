"""Tell whether failures are the cell's, its stack's, a GPU's or the host's, by controls run between each other.

What makes a run is an argument; pure but for that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import ceil, exp, lgamma, log
from random import Random
from typing import Final, Literal, NamedTuple

from harness.search.sequential import BinomialCount

Unit = Literal["cell", "plain", "other-plain"]
Cause = Literal["cell", "stack", "gpu", "other-gpu", "host"]

# The probability that a wrong cause is named, over all questions of a campaign.
CAMPAIGN_ERROR: Final = 0.05
MOST_RUNS: Final = 40
# What works passes at least so often, what is at fault at most so often. Rates between these are not told apart.
SOUND_RATE: Final = 0.95
FAULTY_RATE: Final = 0.5
# Beta weights of the two pass rates as they are guessed before the first run.
SOUND_PRIOR: Final = (19.0, 1.0)
FAULTY_PRIOR: Final = (4.0, 4.0)
# How likely each fault is guessed to be: none, one, or two at once and one that shows on one GPU only.
WEIGHT_OF_NONE: Final = 3.0
WEIGHT_OF_RARE: Final = 0.2
# An arm is run so many times in a row at most: what drifts with time must not meet one arm alone.
IN_A_ROW: Final = 2


class Arm(NamedTuple):
    """A kind of run: of the cell, its stack's `plain` or another stack's; on the GPU where it failed (0) or another."""

    unit: Unit
    gpu: int


# The arms that are at fault.
Pattern = frozenset[Arm]
ArmCounts = Mapping[Arm, BinomialCount]


@dataclass(frozen=True)
class Controls:
    """The runs that are possible besides those of the `plain` cell of the stack that failed.

    `cell`: the cell that failed is another one. `other_stack`: another stack has a `plain` cell. `other_gpu`: there is
    a second GPU, and each run uses one.
    """

    cell: bool = True
    other_stack: bool = True
    other_gpu: bool = True

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """Every kind of run."""
        there: dict[Unit, bool] = {"cell": self.cell, "plain": True, "other-plain": self.other_stack}
        units = [unit for unit, is_there in there.items() if is_there]
        return tuple(Arm(unit, gpu) for unit, gpu in product(units, range(1 + self.other_gpu)))

    @property
    def not_varied(self) -> tuple[Cause, ...]:
        """The causes that all runs share besides the host, and that cannot be told from it."""
        varied: dict[Cause, bool] = {"stack": self.other_stack, "gpu": self.other_gpu}
        return tuple(cause for cause, is_varied in varied.items() if not is_varied)


@dataclass(frozen=True)
class Isolation:
    """The findings of the controls.

    `cause` is shown; None where nothing is, or nothing is at fault (`sound`). `possible`: what is not refuted.
    `runs_left`: about so many more runs would tell; 0 where it is answered, None where more would not, as the pass
    rates lie between those of what works and of what is at fault.
    """

    cause: Cause | None
    sound: bool
    possible: frozenset[Cause]
    runs_left: int | None
    counts: ArmCounts

    @property
    def runs(self) -> int:
        """How many runs were made."""
        return sum(count.runs for count in self.counts.values())

    @property
    def answered(self) -> bool:
        """Return whether the question is answered."""
        return self.cause is not None or self.sound


def isolate(
    controls: Controls,
    run: Callable[[Arm], bool],
    max_runs: int = MOST_RUNS,
    error: float = CAMPAIGN_ERROR,
    seed: object = 0,
) -> Isolation:
    """Make runs until they tell what is at fault, or `max_runs` were made.

    `run` makes one run and says whether it passed. What it is asked for follows from its answers and `seed` alone, so
    that interrupted controls continue when given the same answers again. The failures that raised the question must not
    be among its answers: they were chosen for being failures. A wrong cause is named with probability `error` at
    most, however often one looks, where the faults are among those of `FaultModel`.
    """
    faults, random = FaultModel(controls), Random(str(seed))  # noqa: S311
    counts = dict.fromkeys(controls.arms, BinomialCount())
    first = random.sample(controls.arms, len(controls.arms))
    made: list[Arm] = []
    while len(made) < max_runs:
        arm = first[len(made)] if len(made) < len(first) else faults.next_arm(counts, error, made)
        if arm is None:
            break
        counts[arm] = counts[arm].add(passed=run(arm))
        made.append(arm)
    return faults.read(counts, error)


class FaultModel:
    """The faults that may be there, and the evidence that runs are against each.

    One of `cell`, `stack`, `gpu`, `other-gpu`, `host` or nothing; a cell or stack on one GPU only, or along with a GPU;
    a control by itself. Arms that are at fault pass at one rate of FAULTY_RATE at most, the others at one of SOUND_RATE
    at least.
    """

    def __init__(self, controls: Controls) -> None:
        self._arms = controls.arms
        self._causes, self._weights = _patterns(controls)

    def read(self, counts: ArmCounts, error: float = CAMPAIGN_ERROR) -> Isolation:
        """Return what these runs show: the cause that every fault has that is not refuted."""
        left = self._not_refuted(counts, error)
        shown = frozenset.intersection(*(self._causes[pattern] for pattern in left)) if left else frozenset()
        possible = frozenset(cause for pattern in left for cause in self._causes[pattern])
        # Two are shown where both are at fault: the narrower first.
        order: tuple[Cause, ...] = ("cell", "stack", "gpu", "other-gpu", "host")
        cause = next((one for one in order if one in shown), None)
        sound = bool(left) and not possible
        runs_left = 0 if cause or sound else self._runs_left(counts, error)
        return Isolation(cause, sound, possible, runs_left, dict(counts))

    def next_arm(self, counts: ArmCounts, error: float, made: Sequence[Arm]) -> Arm | None:
        """Return the arm that adds most against the rival hardest to refute; None where nothing is left to tell.

        (Chernoff 1959, "Sequential design of experiments".)
        """
        rivals = self._rivals(counts, error)
        if not rivals:
            return None
        last = set(made[-IN_A_ROW:])
        allowed = [arm for arm in self._arms if last != {arm}]
        hardest = max(rivals, key=lambda one: one.missing / max(one.gains.values()))
        return max(allowed, key=lambda arm: (hardest.gains[arm], sum(r.gains[arm] for r in rivals), -counts[arm].runs))

    def _runs_left(self, counts: ArmCounts, error: float) -> int | None:
        """Return about how many runs refute all rivals, if the likeliest fault is true and runs show the average."""
        rivals, runs = self._rivals(counts, error), 0.0
        if not rivals:
            return None
        while rivals:
            hardest = max(rivals, key=lambda one: one.missing)
            arm = max(self._arms, key=lambda one: hardest.gains[one])
            needed = hardest.missing / hardest.gains[arm]
            runs += needed
            reduced = [one._replace(missing=one.missing - needed * one.gains[arm]) for one in rivals]
            rivals = [one for one in reduced if one.missing > 1e-9]  # noqa: PLR2004
        return ceil(runs)

    def _rivals(self, counts: ArmCounts, error: float) -> list["_Rival"]:
        """Return what has to be refuted for the likeliest fault to be shown, or one of its causes; empty once it is."""
        evidence = self._evidence(counts)
        left = [pattern for pattern, against in evidence.items() if against < -log(error)]
        if not left:
            return []
        weighed = self._weighed(counts)
        best = max(left, key=weighed.__getitem__)
        without = [[one for one in left if cause not in self._causes[one]] for cause in sorted(self._causes[best])]
        # Of two causes the one that is nearer to being shown.
        chosen = min(without, key=lambda some: sum(-log(error) - evidence[one] for one in some), default=None)
        if chosen is None:
            chosen = [one for one in left if self._causes[one]]
        rates = {arm: _rate(counts, best, faulty=arm in best) for arm in self._arms}
        return [
            _Rival(-log(error) - evidence[one], {arm: _gain(rates[arm], arm in best, arm in one) for arm in self._arms})
            for one in chosen
        ]

    def _not_refuted(self, counts: ArmCounts, error: float) -> list[Pattern]:
        return [pattern for pattern, against in self._evidence(counts).items() if against < -log(error)]

    def _weighed(self, counts: ArmCounts) -> dict[Pattern, float]:
        """The logarithm of the likelihood of all runs under each fault, averaged over its rates, times its weight."""
        return {
            pattern: weight + sum(_averaged(count, faulty=faulty) for count, faulty in _split(counts, pattern))
            for pattern, weight in self._weights.items()
        }

    def _evidence(self, counts: ArmCounts) -> dict[Pattern, float]:
        """The logarithm of the evidence against each fault: the averaged likelihood over the greatest it allows.

        Where the fault is the true one, this ever exceeds log(1/a) with probability a at most, whichever arm was run
        next for what was seen before (Ville's inequality; Wasserman, Ramdas and Balakrishnan 2020, "Universal
        inference"). One fault is the true one, so that naming only what all have in common that are not refuted errs
        no more often than refuting that one, and nothing is divided among the causes (closed testing).
        """
        weighed = self._weighed(counts)
        highest = max(weighed.values())
        average = highest + log(sum(exp(value - highest) for value in weighed.values()))
        return {
            pattern: average - sum(_greatest(count, faulty=faulty) for count, faulty in _split(counts, pattern))
            for pattern in weighed
        }


class _Rival(NamedTuple):
    """The evidence that is missing against a fault, and what a run of each arm adds to it on average."""

    missing: float
    gains: Mapping[Arm, float]


@cache
def _patterns(controls: Controls) -> tuple[Mapping[Pattern, frozenset[Cause]], Mapping[Pattern, float]]:
    """Return which arms each fault makes fail, with its causes, and the logarithm of its weight.

    Where the same arms fail by two faults, it is the first of them.
    """

    def of(*units: Unit, gpu: int | None = None) -> Pattern:
        return frozenset(arm for arm in controls.arms if arm.unit in units and gpu in (None, arm.gpu))

    every: tuple[Unit, ...] = ("cell", "plain", "other-plain")
    gpus: dict[Cause, Pattern] = {"gpu": of(*every, gpu=0), "other-gpu": of(*every, gpu=1)}
    units: dict[Cause, Pattern] = {"cell": of("cell"), "stack": of("cell", "plain")}
    causes: dict[Pattern, frozenset[Cause]] = {frozenset(): frozenset(), of(*every): frozenset({"host"})}
    for cause, pattern in {**gpus, **units}.items():
        causes.setdefault(pattern, frozenset({cause}))
    weights = {pattern: 1.0 if pattern else WEIGHT_OF_NONE for pattern in causes}
    for (unit, of_unit), (gpu, of_gpu) in product(units.items(), gpus.items()):
        causes.setdefault(of_unit & of_gpu, frozenset({unit}))
        causes.setdefault(of_unit | of_gpu, frozenset({unit, gpu}))
    # Controls that fail by themselves are no cause of the cell's failures.
    causes.setdefault(of("other-plain"), frozenset())
    causes.setdefault(of("cell", "other-plain"), frozenset({"cell"}))
    causes.setdefault(of("plain"), frozenset())
    weights |= {pattern: WEIGHT_OF_RARE for pattern in causes if pattern not in weights}
    total = sum(weights.values())
    return causes, {pattern: log(weight / total) for pattern, weight in weights.items()}


def _split(counts: ArmCounts, pattern: Pattern) -> tuple[tuple[BinomialCount, bool], tuple[BinomialCount, bool]]:
    """The runs of the arms that are at fault, and those of the others."""
    faulty = sum((count for arm, count in counts.items() if arm in pattern), BinomialCount())
    sound = sum((count for arm, count in counts.items() if arm not in pattern), BinomialCount())
    return (faulty, True), (sound, False)


def _prior(*, faulty: bool) -> tuple[float, float]:
    return FAULTY_PRIOR if faulty else SOUND_PRIOR


def _nearest(rate: float, *, faulty: bool) -> float:
    return min(rate, FAULTY_RATE) if faulty else max(rate, SOUND_RATE)


@cache
def _averaged(count: BinomialCount, *, faulty: bool) -> float:
    a, b = _prior(faulty=faulty)
    return _log_beta(a + count.passes, b + count.runs - count.passes) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


@cache
def _greatest(count: BinomialCount, *, faulty: bool) -> float:
    if not count.runs:
        return 0.0
    rate, failures = _nearest(count.passes / count.runs, faulty=faulty), count.runs - count.passes
    return (count.passes * log(rate) if count.passes else 0.0) + (failures * log(1 - rate) if failures else 0.0)


def _rate(counts: ArmCounts, pattern: Pattern, *, faulty: bool) -> float:
    """The pass rate to be expected of the arms that are at fault, or of the others."""
    count, (a, b) = _split(counts, pattern)[not faulty][0], _prior(faulty=faulty)
    return _nearest((a + count.passes) / (a + b + count.runs), faulty=faulty)


def _gain(rate: float, faulty: bool, in_rival: bool) -> float:
    """Return what a run adds to the evidence against a rival on average: the relative entropy of the two rates."""
    if faulty == in_rival:
        return 0.0
    other = _nearest(rate, faulty=in_rival)
    return rate * log(rate / other) + (1 - rate) * log((1 - rate) / (1 - other))
