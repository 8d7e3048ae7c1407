"""Tell whether failures are the cell's, its stack's, a GPU's or the host's, by controls run between each other.

What makes a run is an argument; pure but for that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import ceil, exp, log
from random import Random
from typing import Final, Literal, NamedTuple

from harness.search.sequential import BinomialCount, log_ratio

Unit = Literal["cell", "plain", "other-plain"]
Cause = Literal["cell", "stack", "gpu", "other-gpu", "host"]

# The probability that a wrong cause is named, over all questions of a campaign.
CAMPAIGN_ERROR: Final = 0.05
MOST_RUNS: Final = 40
# What works passes at least so often, what is at fault at most so often. Rates between these are not told apart.
SOUND_RATE: Final = 0.95
FAULTY_RATE: Final = 0.5
# Between them, to notice that neither is so.
BETWEEN_RATE: Final = 0.75
# The share of the evidence against a fault that is staked on that.
SHARE_OF_BETWEEN: Final = 0.05
# What a fault that differs in one arm more is given of the stake of one that differs in one arm fewer.
NEXT_NEAREST: Final = 0.4
# How likely each fault is guessed to be: none, one, or two at once and one that shows on one GPU only. It decides
# which arm is run next, and nothing else.
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
    a control by itself. Each arm that is at fault passes at a rate of its own of FAULTY_RATE at most, each other one at
    one of SOUND_RATE at least.

    `causes`: those of each fault, by the arms that it makes fail.
    """

    def __init__(self, controls: Controls) -> None:
        self._arms = controls.arms
        self.causes, self._guesses = _patterns(controls)
        self._stakes = {pattern: _stakes(pattern, self.causes) for pattern in self.causes}

    def read(self, counts: ArmCounts, error: float = CAMPAIGN_ERROR) -> Isolation:
        """Return what these runs show: the cause that every fault has that is not refuted."""
        left = [pattern for pattern, against in self.evidence(counts).items() if against < -log(error)]
        shown = frozenset.intersection(*(self.causes[pattern] for pattern in left)) if left else frozenset()
        possible = frozenset(cause for pattern in left for cause in self.causes[pattern])
        # Two are shown where both are at fault: the narrower first.
        order: tuple[Cause, ...] = ("cell", "stack", "gpu", "other-gpu", "host")
        cause = next((one for one in order if one in shown), None)
        sound = bool(left) and not possible
        missing = ceil(sum(self._needed(counts, error).values()))
        return Isolation(cause, sound, possible, missing if left else None, dict(counts))

    def next_arm(self, counts: ArmCounts, error: float, made: Sequence[Arm]) -> Arm | None:
        """Return the arm of which most runs are missing; None where nothing is left to tell.

        (Chernoff 1959, "Sequential design of experiments".)
        """
        needed = self._needed(counts, error)
        if not needed:
            return None
        last = set(made[-IN_A_ROW:])
        allowed = [arm for arm in self._arms if last != {arm}]
        return max(allowed, key=lambda arm: (needed.get(arm, 0.0), -counts[arm].runs))

    def _needed(self, counts: ArmCounts, error: float) -> dict[Arm, float]:
        """Return about how many runs of which arms show the likeliest fault, or one of its causes, where it is true.

        Empty where that is shown, and where every fault is refuted: the pass rates lie between those of what works and
        of what is at fault.
        """
        evidence = self.evidence(counts)
        missing = {pattern: -log(error) - against for pattern, against in evidence.items() if against < -log(error)}
        if not missing:
            return {}
        scores = _scores(counts)
        best = max(missing, key=lambda one: self._guesses[one] - sum(scores[arm] for arm in one))
        # A fault of two causes is named where one of them is.
        rivals = [[one for one in missing if cause not in self.causes[one]] for cause in sorted(self.causes[best])]
        ways = [
            _runs_against({one: missing[one] for one in some}, best, self._arms)
            for some in rivals or [[one for one in missing if self.causes[one]]]
        ]
        return min(ways, key=lambda way: sum(way.values()))

    def evidence(self, counts: ArmCounts) -> Mapping[Pattern, float]:
        """Return the logarithm of the evidence against each fault, by the arms that it makes fail.

        It is the likelihood under the other faults, averaged with `_stakes`, over that under this one, each arm at
        SOUND_RATE or FAULTY_RATE. Where this fault is the true one, a run of an arm at fault multiplies each of the
        ratios by 1, or by r / .5 and (1 - r) / .5 with r = .95, which is at most 1 on average wherever the arm passes
        .5 of its runs or fewer; for the other arms likewise. So it ever exceeds log(1/a) with probability a at most,
        whatever rates the arms have on their side, and whichever arm was run next for what was seen before (Ville's
        inequality). One fault is the true one, so that naming only what all have in common that are not refuted errs
        no more often than refuting that one, and nothing is divided among the causes (closed testing).
        """
        scores = _scores(counts)
        likelihood = {pattern: -sum(scores[arm] for arm in pattern) for pattern in self.causes}
        return {
            pattern: _log_sum(
                [
                    *(log(stake) + likelihood[other] - likelihood[pattern] for other, stake in stakes.items()),
                    log(SHARE_OF_BETWEEN) + sum(_between(count, arm in pattern) for arm, count in counts.items()),
                ]
            )
            for pattern, stakes in self._stakes.items()
        }


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


def _stakes(pattern: Pattern, patterns: Iterable[Pattern]) -> Mapping[Pattern, float]:
    """Return how the evidence against a fault weighs the others: the more, the fewer arms tell them from it.

    What differs in one arm only takes the most runs to tell, and is seldom helped by the evidence for others.
    """
    shares = {other: NEXT_NEAREST ** len(other ^ pattern) for other in patterns if other != pattern}
    return {other: (1 - SHARE_OF_BETWEEN) * share / sum(shares.values()) for other, share in shares.items()}


def _runs_against(missing: Mapping[Pattern, float], truth: Pattern, arms: Sequence[Arm]) -> dict[Arm, float]:
    """Return how many runs of which arms add the evidence that is missing against each fault, on average."""
    gains = {arm: relative_entropy(faulty=arm in truth) for arm in arms}
    runs: dict[Arm, float] = {}
    while missing:
        needed = {one: missing[one] / max(gains[arm] for arm in one ^ truth) for one in missing}
        hardest = max(needed, key=needed.__getitem__)
        told_by = {arm: sum(arm in one ^ truth for one in missing) for arm in arms if arm in hardest ^ truth}
        arm = max(told_by, key=lambda one: (gains[one], told_by[one]))
        more = needed[hardest]
        runs[arm] = runs.get(arm, 0.0) + more
        reduced = {one: left - more * gains[arm] * (arm in one ^ truth) for one, left in missing.items()}
        missing = {one: left for one, left in reduced.items() if left > 1e-9}  # noqa: PLR2004
    return runs


def _scores(counts: ArmCounts) -> dict[Arm, float]:
    """The logarithm of how much likelier the runs of each arm are where it works than where it is at fault."""
    return {arm: log_ratio(count, SOUND_RATE, FAULTY_RATE) for arm, count in counts.items()}


def _between(count: BinomialCount, faulty: bool) -> float:
    return log_ratio(count, BETWEEN_RATE, FAULTY_RATE if faulty else SOUND_RATE)


def _log_sum(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + log(sum(exp(value - highest) for value in values))


def relative_entropy(*, faulty: bool) -> float:
    """Return what a run adds on average to the logarithm of the evidence that its arm is at fault, or works."""
    rate, other = (FAULTY_RATE, SOUND_RATE) if faulty else (SOUND_RATE, FAULTY_RATE)
    return rate * log(rate / other) + (1 - rate) * log((1 - rate) / (1 - other))
