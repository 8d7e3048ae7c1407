"""Finds whether failures come from the cell, its stack, a GPU or the host, by controls run in turn.

A caller's function makes the runs; everything else is pure.
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
# What works passes at least at the first rate, what is at fault at most at the second. Rates in between stay undecided.
SOUND_RATE: Final = 0.95
FAULTY_RATE: Final = 0.5
# A rate in between, to notice when an arm neither works nor is at fault.
BETWEEN_RATE: Final = 0.75
# The share of the stake against a fault that is put on a rate in between.
SHARE_OF_BETWEEN: Final = 0.05
# Factor of the stake for each further arm in which two faults differ.
NEXT_NEAREST: Final = 0.4
# How likely each fault is assumed to be: none, a single one, or the rare ones: two at once, or one on one GPU only.
# These weights only decide which arm is run next.
WEIGHT_OF_NONE: Final = 3.0
WEIGHT_OF_RARE: Final = 0.2
# Most runs of an arm in a row, so that a drift over time does not affect one arm only.
IN_A_ROW: Final = 2


class Arm(NamedTuple):
    """A kind of run: of the cell, its stack's `plain` or another stack's; on the GPU that failed (0) or another (1)."""

    unit: Unit
    gpu: int


# The set of arms that a fault makes fail.
Pattern = frozenset[Arm]
ArmCounts = Mapping[Arm, BinomialCount]


@dataclass(frozen=True)
class Controls:
    """The runs that are possible besides those of the `plain` cell of the failing stack.

    Attributes:
        cell: the failing cell is not that `plain` cell itself.
        other_stack: another stack has a `plain` cell.
        other_gpu: there is a second GPU, and each run uses one.
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
        """The causes that all runs share besides the host, so that they cannot be told from the host."""
        varied: dict[Cause, bool] = {"stack": self.other_stack, "gpu": self.other_gpu}
        return tuple(cause for cause, is_varied in varied.items() if not is_varied)


@dataclass(frozen=True)
class Isolation:
    """The findings of the controls.

    Attributes:
        cause: the cause that is shown; None if none is shown, or nothing is at fault.
        sound: nothing is at fault.
        possible: the causes that are not refuted.
        runs_left: how many more runs would about be needed; 0 if the question is answered, None if more runs would not
            help, because the pass rates lie between those of what works and of what is at fault.
    """

    cause: Cause | None
    sound: bool
    possible: frozenset[Cause]
    runs_left: int | None
    counts: ArmCounts

    @property
    def runs(self) -> int:
        """The number of runs that were made."""
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
    """Make runs until they show what is at fault, or `max_runs` were made.

    `run` makes one run and returns whether it passed. The arms that it is called with follow only from its answers and
    `seed`, so that interrupted controls continue when given the same answers again. The failures that raised the
    question must not be among its answers, because they were chosen for being failures. If the fault is one of those of
    `FaultModel`, a wrong cause is named with a probability of at most `error`, however often one looks.
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
    """The faults that are considered, and the evidence of runs against each.

    A fault is one of `cell`, `stack`, `gpu`, `other-gpu`, `host` or nothing; a cell or stack that fails on one GPU
    only, or together with a GPU; or controls that fail by themselves. Each arm at fault passes at a rate of its own of
    at most FAULTY_RATE, each other arm at a rate of at least SOUND_RATE.

    `causes` holds the causes of each fault, by the arms that the fault makes fail.
    """

    def __init__(self, controls: Controls) -> None:
        self._arms = controls.arms
        self.causes, self._guesses = _patterns(controls)
        self._stakes = {pattern: _stakes(pattern, self.causes) for pattern in self.causes}

    def read(self, counts: ArmCounts, error: float = CAMPAIGN_ERROR) -> Isolation:
        """Return what these runs show: a cause is shown if all faults that are not refuted have it."""
        left = [pattern for pattern, against in self.evidence(counts).items() if against < -log(error)]
        shown = frozenset.intersection(*(self.causes[pattern] for pattern in left)) if left else frozenset()
        possible = frozenset(cause for pattern in left for cause in self.causes[pattern])
        # If two causes are shown, both are at fault; name the narrower one.
        order: tuple[Cause, ...] = ("cell", "stack", "gpu", "other-gpu", "host")
        cause = next((one for one in order if one in shown), None)
        sound = bool(left) and not possible
        missing = ceil(sum(self._needed(counts, error).values()))
        return Isolation(cause, sound, possible, missing if left else None, dict(counts))

    def next_arm(self, counts: ArmCounts, error: float, made: Sequence[Arm]) -> Arm | None:
        """Return the arm of which most runs are missing; None if runs can show nothing more.

        The method is that of Chernoff 1959, "Sequential design of experiments".
        """
        needed = self._needed(counts, error)
        if not needed:
            return None
        last = set(made[-IN_A_ROW:])
        allowed = [arm for arm in self._arms if last != {arm}]
        return max(allowed, key=lambda arm: (needed.get(arm, 0.0), -counts[arm].runs))

    def _needed(self, counts: ArmCounts, error: float) -> dict[Arm, float]:
        """Return how many runs of which arms would show the likeliest fault, or one of its causes, if it is true.

        The result is empty if that is shown already, and also if every fault is refuted, because the pass rates lie
        between those of what works and of what is at fault.
        """
        evidence = self.evidence(counts)
        missing = {pattern: -log(error) - against for pattern, against in evidence.items() if against < -log(error)}
        if not missing:
            return {}
        scores = _scores(counts)
        best = max(missing, key=lambda one: self._guesses[one] - sum(scores[arm] for arm in one))
        # If a fault has two causes, it is enough to show one of them.
        rivals = [[one for one in missing if cause not in self.causes[one]] for cause in sorted(self.causes[best])]
        ways = [
            _runs_against({one: missing[one] for one in some}, best, self._arms)
            for some in rivals or [[one for one in missing if self.causes[one]]]
        ]
        return min(ways, key=lambda way: sum(way.values()))

    def evidence(self, counts: ArmCounts) -> Mapping[Pattern, float]:
        """Return the logarithm of the evidence against each fault, by the arms that the fault makes fail.

        The evidence is the likelihood under the other faults, averaged with `_stakes`, divided by the likelihood under
        this fault, where each arm passes at SOUND_RATE or FAULTY_RATE. If this fault is the true one, a run of an arm
        at fault multiplies each ratio by 1, or by r / .5 and (1 - r) / .5 with r = .95. The average of that factor is
        at most 1 if the arm passes at most .5 of its runs; the same holds for the other arms. So the evidence ever
        exceeds log(1/a) with a probability of at most a, whatever rates the arms have on their side, and however the
        next arm was chosen from what was seen before (Ville's inequality). Exactly one fault is the true one. A cause
        is only named if all faults that are not refuted have it, which errs no more often than refuting the true fault,
        so the error is not divided among the causes (closed testing).
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
    """Return the causes of each fault, and the logarithm of its weight, by the arms that the fault makes fail.

    If two faults make the same arms fail, the first one is kept.
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
    # A preset may avoid what fails every plain cell.
    causes.setdefault(of("plain", "other-plain"), frozenset())
    weights |= {pattern: WEIGHT_OF_RARE for pattern in causes if pattern not in weights}
    total = sum(weights.values())
    return causes, {pattern: log(weight / total) for pattern, weight in weights.items()}


def _stakes(pattern: Pattern, patterns: Iterable[Pattern]) -> Mapping[Pattern, float]:
    """Return the weights of the other faults in the evidence against a fault: the fewer arms differ, the higher.

    A fault that differs in one arm only takes the most runs to tell apart, and evidence for other faults seldom helps.
    """
    shares = {other: NEXT_NEAREST ** len(other ^ pattern) for other in patterns if other != pattern}
    return {other: (1 - SHARE_OF_BETWEEN) * share / sum(shares.values()) for other, share in shares.items()}


def _runs_against(missing: Mapping[Pattern, float], truth: Pattern, arms: Sequence[Arm]) -> dict[Arm, float]:
    """Return how many runs of which arms give, on average, the evidence that is missing against each fault."""
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
    """Return for each arm the logarithm of how much likelier its runs are if it works than if it is at fault."""
    return {arm: log_ratio(count, SOUND_RATE, FAULTY_RATE) for arm, count in counts.items()}


def _between(count: BinomialCount, faulty: bool) -> float:
    return log_ratio(count, BETWEEN_RATE, FAULTY_RATE if faulty else SOUND_RATE)


def _log_sum(values: Sequence[float]) -> float:
    highest = max(values)
    return highest + log(sum(exp(value - highest) for value in values))


def relative_entropy(*, faulty: bool) -> float:
    """Return how much a run adds on average to the logarithm of the evidence that its arm is at fault, or works."""
    rate, other = (FAULTY_RATE, SOUND_RATE) if faulty else (SOUND_RATE, FAULTY_RATE)
    return rate * log(rate / other) + (1 - rate) * log((1 - rate) / (1 - other))
