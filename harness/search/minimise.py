"""Finds which variables of a preset matter, by runs that do not always pass. The caller makes the runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import log
from random import Random
from typing import Literal

from harness.base.wording import many
from harness.evidence.verdicts.rates import lower_bound, upper_bound
from harness.search.least_failing import MOST_ERROR, BudgetSpentError
from harness.search.sequential import BinomialCount, PairedTest, log_ratio

VariableSet = frozenset[str]
SearchOutcome = Literal["found", "no-difference", "not-enough-runs"]
Stage = Literal["effect", "screen", "reduce", "confirm"]

# The highest error probability of a step before the confirmation, which finds out if a step was wrong.
STEP_ERROR = 0.02
STEP_BOUND = log((1 - STEP_ERROR) / STEP_ERROR)
# Screening stops when the p-value of one variable is at most this, or after SCREEN_LENGTH times the runs that it took
# to show the effect of all variables.
STANDS_OUT = 0.1
SCREEN_LENGTH = 2
# The share of all runs in which the effect has to show, or else it is not followed.
EFFECT_SHARE = 0.5
# Fewest pairs of runs that say anything about a difference.
FEWEST_PAIRS = 5
# Fewest runs to allow for a search, so that there can be that many pairs.
FEWEST_RUNS = round(2 * FEWEST_PAIRS / EFFECT_SHARE)
# The smallest difference in pass rates that is searched for. With 0.1, one of twenty searches ended without having met
# a failure of that rate.
SMALLEST_DIFFERENCE = 0.07
PAIRS_BETWEEN_NOTES = 10


@dataclass(frozen=True)
class Minimum:
    """The result of a search.

    Attributes:
        effect: whether the variables make runs pass more often or less often; None if no difference is shown.
        variables: a smallest set that has the effect of all, so that leaving out any one of them removes the effect. If
            the runs did not suffice, the smallest set so far that had the effect, not confirmed.
        reached: the last stage that began.
        with_all: runs with all variables, in the pairs of the first stage.
        with_none: runs with none of the variables, in the same pairs.
        confirmed: fresh runs with `variables` only.
        without: fresh runs with one of `variables` left out, by its name.
        screened: the p-value of each variable's own effect.
        rest_too: whether all other variables have the effect as well; None if that was not seen.
    """

    conclusion: SearchOutcome
    effect: Literal["helps", "harms"] | None
    variables: VariableSet
    reached: Stage
    runs: int
    with_all: BinomialCount
    with_none: BinomialCount
    confirmed: BinomialCount
    without: Mapping[str, BinomialCount]
    screened: Mapping[str, float]
    rest_too: bool | None

    @property
    def largest_difference(self) -> float:
        """The most that the pass rates with all and with none can differ, with 95 % confidence of each bound."""
        return _largest_difference(self.with_all, self.with_none)


def minimise_variables(
    variables: Sequence[str],
    run: Callable[[VariableSet], bool],
    max_runs: int,
    seed: object = 0,
    notify: Callable[[str], None] = lambda _: None,
) -> Minimum:
    """Find the smallest part of `variables` that makes runs pass, or fail, as all of them do.

    `run` makes one run with some of the variables and returns whether it passed. The sets that it is called with follow
    only from its answers and `seed`, so that a search continues where it was interrupted when given the same answers
    again. `notify` is called with a line for each stage that begins.

    There are four stages. Pairs of runs with all variables and with none show whether there is an effect. A two-level
    design ranks the variables. Sequential tests shrink the set from that ranking until nothing can be left out. Fresh
    runs confirm the result.

    Raises:
        ValueError: when there are no variables, or one is named twice.
    """
    if not variables or len(set(variables)) < len(variables):
        raise ValueError(f"variables to choose from: {list(variables)}")
    search = _Search(variables, run, max_runs, Random(str(seed)), notify)  # noqa: S311
    try:
        conclusion = search.carry_out()
    except BudgetSpentError:
        conclusion = "not-enough-runs"
    return search.summary(conclusion)


class _Search:
    """A search under way, with all its runs so far, by the variables that they set and by their purpose."""

    def __init__(
        self,
        variables: Sequence[str],
        run: Callable[[VariableSet], bool],
        max_runs: int,
        random: Random,
        notify: Callable[[str], None],
    ) -> None:
        self._all = tuple(variables)
        self._run, self._max_runs, self._random, self._notify = run, max_runs, random, notify
        self._runs = 0
        self._seen: dict[VariableSet, BinomialCount] = defaultdict(BinomialCount)
        self._design: list[tuple[VariableSet, bool]] = []
        self._pairs = PairedTest()
        self._screened: dict[str, float] = {}
        self._reached: Stage = "effect"
        self._best: VariableSet = frozenset()
        self._confirmed: dict[VariableSet, BinomialCount] = {}
        self._rest_too: bool | None = None

    def carry_out(self) -> SearchOutcome:
        """Run the search; raises BudgetSpentError when more runs are needed than are allowed."""
        if not self._has_difference():
            looked = self._pairs.one.runs >= FEWEST_PAIRS and self._pairs.log_evidence <= 0
            return "no-difference" if self._alike or looked else "not-enough-runs"
        self._best = frozenset(self._all)
        for attempt in count(1):
            ranked = self._rank()
            self._best = self._reduce(ranked)
            # Each attempt has half the error of the one before, so that all together stay within the allowed error.
            if self._confirm(self._best, MOST_ERROR / 2**attempt):
                break
        return "found"

    def summary(self, conclusion: SearchOutcome) -> Minimum:
        """Return the result of the search so far."""
        if conclusion == "found":
            self._look_at_the_rest()
        best = self._best
        differs = self._pairs.shows_difference(MOST_ERROR)
        return Minimum(
            conclusion=conclusion,
            effect=None if not differs else "helps" if self._helps else "harms",
            variables=best,
            reached=self._reached,
            runs=self._runs,
            with_all=self._pairs.one,
            with_none=self._pairs.other,
            confirmed=self._confirmed.get(best, BinomialCount()),
            without={v: self._confirmed.get(best - {v}, BinomialCount()) for v in sorted(best)},
            screened=self._screened,
            rest_too=self._rest_too,
        )

    @property
    def _helps(self) -> bool:
        return self._pairs.one.rate > self._pairs.other.rate

    @property
    def _alike(self) -> bool:
        return _largest_difference(self._pairs.one, self._pairs.other) < SMALLEST_DIFFERENCE

    def _make(self, variables: VariableSet) -> bool:
        if self._runs == self._max_runs:
            raise BudgetSpentError
        passed = self._run(variables)
        self._runs += 1
        self._seen[variables] = self._seen[variables].add(passed=passed)
        return passed

    def _make_each(self, sets: Iterable[VariableSet]) -> dict[VariableSet, bool]:
        """Make one run of each set in random order, so that a drift over time favours none of them."""
        shuffled = list(sets)
        self._random.shuffle(shuffled)
        return {variables: self._make(variables) for variables in shuffled}

    def _has_difference(self) -> bool:
        self._notify(f"looking for an effect of {many(len(self._all), 'variable')} together")
        everything, nothing = frozenset(self._all), frozenset[str]()
        while not self._pairs.shows_difference(MOST_ERROR):
            if self._alike or self._runs + 2 > self._max_runs * EFFECT_SHARE:
                return False
            passed = self._make_each([everything, nothing])
            self._pairs = self._pairs.add(passed[everything], passed[nothing])
            if self._pairs.one.runs % PAIRS_BETWEEN_NOTES == 0:
                self._notify(
                    f"so far {self._pairs.one.in_words} with all variables, {self._pairs.other.in_words} with none"
                )
        return True

    def _rank(self) -> list[str]:
        """Return the variables, those with the clearest effect of their own first."""
        # One or two variables are tried alone sooner than they are screened.
        if len(self._all) > 2:  # noqa: PLR2004
            self._reached = "screen"
            self._notify(f"screening {len(self._all)} variables")
            until = self._runs + SCREEN_LENGTH * (self._pairs.one.runs + self._pairs.other.runs)
            while True:
                self._screen_once()
                if min(self._screened.values()) <= STANDS_OUT or self._runs >= until:
                    break
        return sorted(self._all, key=lambda name: self._screened.get(name, 1.0))

    def _screen_once(self) -> None:
        """Make one run of each row of the design, with the variables assigned to new random columns."""
        columns = self._random.sample(self._all, len(self._all))
        rows = plackett_burman(len(columns))
        chosen = [frozenset(name for name, is_set in zip(columns, row, strict=True) if is_set) for row in rows]
        self._design += self._make_each(chosen).items()
        self._screened = {name: self._effect_of(name) for name in self._all}

    def _effect_of(self, name: str) -> float:
        """Return the one-sided p-value of a variable's own effect in the screening runs."""
        from scipy.stats import fisher_exact  # noqa: PLC0415

        table = {is_set: BinomialCount() for is_set in (True, False)}
        for variables, passed in self._design:
            table[name in variables] = table[name in variables].add(passed=passed)
        rows = [[c.passes, c.runs - c.passes] for c in (table[True], table[False])]
        return float(fisher_exact(rows, alternative="greater" if self._helps else "less").pvalue)

    def _has_effect(self, variables: VariableSet) -> bool:
        """Return whether runs with these variables pass like those with all rather than like those with none."""
        while abs(ratio := self._log_ratio(self._seen[variables])) < STEP_BOUND:
            self._make(variables)
        return ratio > 0

    def _log_ratio(self, runs: BinomialCount) -> float:
        return log_ratio(runs, self._seen[frozenset(self._all)].rate, self._seen[frozenset()].rate)

    def _reduce(self, ranked: Sequence[str]) -> VariableSet:
        """Return a set that has the effect, and from which nothing can be left out."""
        self._reached = "reduce"
        self._notify("leaving out what is not needed")
        size = 1
        while size < len(ranked) and not self._has_effect(frozenset(ranked[:size])):
            size = min(2 * size, len(ranked))
        kept = frozenset(ranked[:size])
        for name in reversed(ranked[:size]):
            fewer = kept - {name}
            if fewer and self._has_effect(fewer):
                kept = fewer
        return kept

    def _confirm(self, variables: VariableSet, error: float) -> bool:
        """Return whether fresh runs show that leaving out any one of these variables makes the same difference."""
        self._reached = "confirm"
        self._notify(f"confirming {', '.join(sorted(variables))}")
        fresh: dict[VariableSet, BinomialCount] = defaultdict(BinomialCount)
        self._confirmed = fresh
        # Sort, because the order of a set differs between processes, but the runs asked for must not.
        tests = {variables - {name}: PairedTest() for name in sorted(variables)}
        while unsettled := [fewer for fewer, test in tests.items() if not test.shows_difference(error)]:
            passed = self._make_each([variables, *unsettled])
            for made, one in passed.items():
                fresh[made] = fresh[made].add(passed=one)
            for fewer in unsettled:
                tests[fewer] = tests[fewer].add(passed[variables], passed[fewer])
            against = [-self._log_ratio(fresh[variables]), *(self._log_ratio(fresh[fewer]) for fewer in tests)]
            if max(against) >= STEP_BOUND:
                return False
        return all((test.one.rate > test.other.rate) == self._helps for test in tests.values())

    def _look_at_the_rest(self) -> None:
        rest = frozenset(self._all) - self._best
        if rest:
            self._notify("checking whether the others do the same")
            try:
                self._rest_too = self._has_effect(rest)
            except BudgetSpentError:
                return


def _largest_difference(one: BinomialCount, other: BinomialCount) -> float:
    low = [lower_bound(c.passes, c.runs, 1 - MOST_ERROR) for c in (one, other)]
    high = [upper_bound(c.passes, c.runs, 1 - MOST_ERROR) for c in (one, other)]
    return max(high[0] - low[1], high[1] - low[0])


def plackett_burman(factors: int) -> tuple[tuple[bool, ...], ...]:
    """Return a two-level design, whose rows say which factors are set.

    In every pair of columns all four combinations are equally frequent, so that each factor's own effect shows.

    It has p + 1 rows for the smallest prime p = 3 (mod 4) that is no less than the number of factors: 4 for up to 3
    factors, 8 for 7, 12 for 11, 20 for 19. One row sets every factor; of the other p, row i sets factor j unless j - i
    is 0 or a square modulo p (Plackett and Burman 1946; Paley's construction).
    """
    size = next(p for p in count(3, 4) if p >= factors and _is_prime(p))
    squares = {i * i % size for i in range(size)}
    cyclic = [tuple((column - row) % size not in squares for column in range(factors)) for row in range(size)]
    return (*cyclic, (True,) * factors)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
