"""Find the least of something (steps, a size) at which it still fails. What makes a run is an argument."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.search.belief import RATE_PRIOR, RATES, Belief

# The probability that what is said at the end is wrong, at most.
MOST_ERROR = 0.05
# Before the first run: that it will not be seen again, at any level.
NEVER_AGAIN = 0.1


class BudgetSpentError(Exception):
    """Every run that is allowed was made."""


@dataclass(frozen=True)
class LeastFailing:
    """The least failing level, an index; None where no level fails any more. `rates`: the weights of RATES then."""

    level: int | None
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The failure rate of what fails, as far as the runs tell."""
        return mean_rate(self.rates)


def least_failing(
    levels: int,
    fails: Callable[[int], int | None],
    error: float = MOST_ERROR,
    rates: Sequence[float] = RATE_PRIOR,
    prior: Sequence[float] | None = None,
) -> LeastFailing:
    """Search levels 0 to `levels` - 1, of which each has all in it that those below have.

    `fails` makes a run of a level and returns the level at which it failed, no higher than asked for; None where it
    passed. It may raise BudgetSpentError. `rates` weigh RATES, and `prior` each level, and, last, that none fails.

    Raises:
        ValueError: without levels, or where the weights are not as many as they must be.
    """
    weights = [(1 - NEVER_AGAIN) / max(levels, 1)] * levels + [NEVER_AGAIN] if prior is None else list(prior)
    if levels < 1 or len(weights) != levels + 1:
        raise ValueError(f"{levels} levels, {len(weights)} weights")
    belief = Belief(weights, rates=rates)
    while (known := belief.probabilities).max() < 1 - error:
        asked, _ = belief.best_place()
        failed = fails(asked)
        belief.learn(belief.up_to(asked if failed is None else min(failed, asked)), passed=failed is None)
    found = int(known.argmax())
    return LeastFailing(found if found < levels else None, belief.rates_of(found))


def mean_rate(rates: Sequence[float]) -> float:
    """Return the mean of RATES with these weights."""
    return sum(rate * weight for rate, weight in zip(RATES, rates, strict=True))
