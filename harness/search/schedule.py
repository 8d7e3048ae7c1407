"""Chooses the next candidate to run: to find one known-good cell in few runs, or to settle every cell. Pure."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, log
from statistics import median
from typing import Final, Literal, NamedTuple

from harness.evidence.verdicts.exposure_rates import expected_failures
from harness.evidence.verdicts.rates import runs_to_show
from harness.evidence.verdicts.totals import Life, Totals
from harness.search.goal import Goal

CandidateStatus = Literal["known-good", "another-boot", "ruled-out", "hopeless", "undecided", "open"]
EndReason = Literal["reached", "another-boot", "exhausted", "out-of-time"]

# Beta prior of an unknown pass rate, with weight near 1 as in `rates`.
PASS_RATE_PRIOR: Final = (1.0, 0.5)
# A search drops a cell if the probability that its rate is above the goal's is lower than this.
HOPELESS: Final = 0.01
# A rate exactly at the goal is never settled, so a cell becomes undecided after this many times the runs that would
# show the goal without a failure.
UNDECIDED_AFTER: Final = 10
# What a run says about a cell with the same stack or preset, as a share of that cell's own run, and the most in total.
KINSHIP: Final = 0.3
MOST_BORROWED: Final = 3.0
# Diagnoses that depend on the stack only, whatever the preset, and on the preset only, whatever the stack.
OF_THE_STACK: Final = frozenset(
    {"missing-arch", "install", "unavailable", "build", "compile", "not-started", "wrong-stack", "wrong-device"}
)
OF_THE_PRESET: Final = frozenset({"preset"})


# Most runs for which a chance is computed run by run.
MOST_AHEAD: Final = 100_000


@dataclass(frozen=True)
class Candidate:
    """A cell, and the scope of what its runs show. The more `devices` it uses at once, the riskier for the host."""

    cell: str
    stack: str
    preset: str
    scope: str
    devices: int = 1


@dataclass(frozen=True)
class Tally:
    """The runs of a candidate that count, and the diagnoses of its failures.

    Attributes:
        totals: their starts and hours; if None, each run is one start, which succeeds if the run passes.
        on_this_boot: whether a run was made since the last boot.
    """

    passes: int = 0
    runs: int = 0
    diagnoses: Mapping[str, int] = field(default_factory=dict)
    totals: Totals | None = None
    on_this_boot: bool = True

    @property
    def failures(self) -> int:
        """The number of runs that did not pass."""
        return self.runs - self.passes

    @property
    def shown(self) -> Totals:
        """The totals that the runs show."""
        return self.totals or Totals(self.passes, self.runs, boots=1 if self.runs else 0)

    @property
    def hours_of_a_run(self) -> float:
        """The hours that a run trains on average; 0 if that is unknown."""
        lengths = self.shown.lengths
        return sum(lengths) / len(lengths) if lengths else 0.0


class _Lent(NamedTuple):
    """Evidence that a cell lends others: passes, failures for those of its stack, and for those of its preset."""

    passes: float = 0.0
    by_stack: float = 0.0
    by_preset: float = 0.0


_NOTHING: Final = _Lent()


@dataclass(frozen=True)
class Next:
    """The candidate to run next.

    Attributes:
        runs_left: the runs left to the goal, if nothing unexpected happens.
        seconds_left: the seconds that these runs take; None if unknown.
        runs_of_it: how many of these runs are of this candidate.
        spare: the seconds that are left after one run of it; None if there is no budget.
    """

    candidate: Candidate
    runs_left: int
    seconds_left: float | None
    runs_of_it: int
    spare: float | None = None


@dataclass(frozen=True)
class End:
    """The end of a search, with the reason why nothing more is run."""

    why: EndReason


def next_run(
    candidates: Sequence[Candidate],
    tallies: Mapping[Candidate, Tally],
    goal: Goal,
    seed: int,
    seconds: Mapping[str, float] = {},
    time_left: float | None = None,
) -> Next | End:
    """Return the next run, or why there is none.

    - `tallies`: may lack candidates without a run.
    - `seed`: decides between equally promising candidates of the same risk.
    - `seconds`: the duration of a run of a cell, if known.
    - `time_left`: in seconds; None if there is no budget.
    """
    known = {one: tallies.get(one, Tally()) for one in candidates}
    statuses = {one: status_of(tally, goal) for one, tally in known.items()}
    if not goal.every and "known-good" in statuses.values():
        return End("reached")
    waiting = "another-boot" in statuses.values()
    if waiting and not goal.every:
        return End("another-boot")
    left = [one for one in in_random_order(candidates, seed) if statuses[one] == "open"]
    if not left:
        if waiting:
            return End("another-boot")
        return End("reached" if goal.every and "undecided" not in statuses.values() else "exhausted")
    usual = median(seconds.values()) if seconds else None
    spare = {one: None if time_left is None else time_left - (seconds.get(one.cell, usual) or 0) for one in left}
    fitting = [one for one, over in spare.items() if over is None or over > 0]
    if not fitting:
        return End("out-of-time")
    # Runs on several devices hang hosts most often, so they come last, when everything else is known.
    fewest = min(one.devices for one in fitting)
    least = [one for one in fitting if one.devices == fewest]
    if goal.every:
        runs = {one: _runs_to_settle(known[one], goal) for one in left}
        # Try each once before settling any, because cells that always fail are the cheapest to settle.
        chosen = min(least, key=lambda one: (known[one].runs > 0, runs[one]))
    else:
        borrowed = _borrowed(known)
        # Of equals the plain one, because others are compared with it.
        chosen = max(least, key=lambda one: (_promise(known[one], borrowed[one], goal), one.preset == "plain"))
        runs = {chosen: straight_passes(known[chosen], goal)}
    lasting = None if usual is None else sum(n * seconds.get(one.cell, usual) for one, n in runs.items())
    return Next(chosen, sum(runs.values()), lasting, runs[chosen], spare[chosen])


def status_of(tally: Tally, goal: Goal) -> CandidateStatus:
    """Return the status of a candidate: shown to be above or below the goal's rate, dropped, undecided, or open."""
    totals = tally.shown
    if reaches_both(totals, goal):
        if totals.boots >= goal.boots:
            return "known-good"
        return "another-boot" if tally.on_this_boot else "open"
    now = _status(tally.passes, tally.runs, goal)
    few = Totals(lives=(Life(totals.hours / UNDECIDED_AFTER),))
    if now == "undecided" and totals.lengths and hours_missing(few, goal) > 0:
        now = "open"
    if now == "open" and not goal.every and _is_too_frail(totals.failures, totals.hours, goal.mtbf_hours):
        return "hopeless"
    return now


def reaches_both(totals: Totals, goal: Goal) -> bool:
    """Return whether the bounds of the starts and of the mean time between failures are above the goal's."""
    return starts_missing(totals, goal) <= 0 and hours_missing(totals, goal) <= 0


def starts_missing(totals: Totals, goal: Goal) -> int:
    """Return how many starts without a failure are missing to show the goal's share of starts; none at 0 and below."""
    return runs_to_show(totals.starts - totals.started, goal.rate, goal.of_each) - totals.starts


def hours_missing(totals: Totals, goal: Goal) -> float:
    """Return how many hours of training without a failure are missing to show the goal's mean time between failures."""
    if goal.mtbf_hours == 0:
        return 0.0
    return goal.mtbf_hours * expected_failures(totals.failures, goal.of_each) - totals.hours


def _is_too_frail(failures: int, hours: float, mtbf_hours: float) -> bool:
    """Return whether the probability that the mean time between failures is as long as `mtbf_hours` is below HOPELESS.

    The failure rate has a Gamma(1/2 + failures) distribution in hours, with half of `mtbf_hours` added as a prior.
    """
    if not failures or mtbf_hours == 0:
        return False
    from scipy.special import gammainc  # noqa: PLC0415

    return bool(gammainc(0.5 + failures, hours / mtbf_hours + 0.5) < HOPELESS)


@cache
def _status(passes: int, runs: int, goal: Goal) -> CandidateStatus:
    if goal.every and runs >= runs_to_show(passes, 1 - goal.rate, goal.of_each):
        return "ruled-out"
    # Import here as in `rates`, or else every command would wait for the import.
    from scipy.special import betaincc  # noqa: PLC0415

    a, b = PASS_RATE_PRIOR
    if not goal.every and betaincc(a + passes, b + runs - passes, goal.rate) < HOPELESS:
        return "hopeless"
    return "undecided" if runs >= _undecided_after(goal) else "open"


def _undecided_after(goal: Goal) -> int:
    return UNDECIDED_AFTER * runs_to_show(0, goal.rate, goal.confidence)


def in_random_order(candidates: Iterable[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates in an order that depends only on the seed and their names."""
    ordered = sorted(candidates, key=lambda one: (one.cell, one.scope))
    random.Random(seed).shuffle(ordered)  # noqa: S311
    return ordered


def straight_passes(tally: Tally, goal: Goal) -> int:
    """Return how many further runs without a failure, as long as those already made, would reach the goal.

    If no hours are known of the cell, only starts are counted.
    """
    totals = tally.shown
    starts = starts_missing(totals, goal)
    hours = max(0.0, hours_missing(totals, goal))
    runs = ceil(hours / tally.hours_of_a_run) if tally.hours_of_a_run else 0
    boot = 0 if totals.boots >= goal.boots or tally.on_this_boot else 1
    return max(0, starts, runs, boot)


def _runs_to_settle(tally: Tally, goal: Goal) -> int:
    """Return how many runs settle a candidate that keeps its pass rate, at most as many as make it undecided.

    A run shows on average the relative entropy of that rate and the goal's rate.
    """
    from scipy.special import rel_entr  # noqa: PLC0415

    rate = tally.passes / tally.runs if tally.runs else 1.0
    most = _undecided_after(goal) - tally.runs
    if rate > goal.rate:
        missing = straight_passes(tally, goal) * -log(goal.rate)
    else:
        missing = (runs_to_show(tally.passes, 1 - goal.rate, goal.of_each) - tally.runs) * -log(1 - goal.rate)
    shown = float(rel_entr((rate, 1 - rate), (goal.rate, 1 - goal.rate)).sum())
    return ceil(missing / shown - 1e-9) if missing < most * shown else most


def _promise(tally: Tally, borrowed: tuple[float, float], goal: Goal) -> float:
    a, b = PASS_RATE_PRIOR[0] + tally.passes + borrowed[0], PASS_RATE_PRIOR[1] + tally.failures + borrowed[1]
    return _success_per_run(a, b, max(1, straight_passes(tally, goal)))


@cache
def _success_per_run(a: float, b: float, left: int) -> float:
    """Return the chance that `left` runs all pass per expected run until that is known, for a rate that is Beta(a, b).

    A search that turns to another cell at the first failure gains this much for each run that it spends.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import betaln  # noqa: PLC0415

    # Trainings of milliseconds would need more, each with its memory; no search makes so many.
    passing = np.exp(betaln(a + np.arange(min(left, MOST_AHEAD) + 1), b) - betaln(a, b))
    return float(passing[-1] / passing[:-1].sum())


def _borrowed(known: Mapping[Candidate, Tally]) -> dict[Candidate, tuple[float, float]]:
    """Return the passes and failures that others of the same stack or preset lend a candidate."""
    lent = {one: _lent(tally) for one, tally in known.items() if tally.runs}
    of_stack: dict[str, list[_Lent]] = defaultdict(list)
    of_preset: dict[str, list[_Lent]] = defaultdict(list)
    for one, runs in lent.items():
        of_stack[one.stack].append(runs)
        of_preset[one.preset].append(runs)
    of_stacks = {name: (sum(n.passes for n in all_), sum(n.by_stack for n in all_)) for name, all_ in of_stack.items()}
    of_presets = {
        name: (sum(n.passes for n in all_), sum(n.by_preset for n in all_)) for name, all_ in of_preset.items()
    }
    borrowed = {}
    for one in known:
        own = lent.get(one, _NOTHING)
        by_stack, by_preset = of_stacks.get(one.stack, (0.0, 0.0)), of_presets.get(one.preset, (0.0, 0.0))
        passes = by_stack[0] + by_preset[0] - 2 * own.passes
        failures = by_stack[1] - own.by_stack + by_preset[1] - own.by_preset
        share = min(1.0, MOST_BORROWED / max(passes + failures, MOST_BORROWED))
        borrowed[one] = (round(passes * share, 6), round(failures * share, 6))
    return borrowed


def _lent(tally: Tally) -> _Lent:
    """Return what a cell lends. A failure that only the stack causes counts fully for its stack; likewise presets."""
    of_stack = sum(count for diagnosis, count in tally.diagnoses.items() if diagnosis in OF_THE_STACK)
    of_preset = sum(count for diagnosis, count in tally.diagnoses.items() if diagnosis in OF_THE_PRESET)
    shared = KINSHIP * (tally.failures - of_stack - of_preset)
    return _Lent(KINSHIP * tally.passes, of_stack + shared, of_preset + shared)
