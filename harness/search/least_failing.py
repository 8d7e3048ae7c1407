"""Finds the least level of something, such as steps or a size, at which runs still fail. The caller makes the runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.search.belief import RATE_PRIOR, RATES, Belief

# The highest probability that the final answer is wrong.
MOST_ERROR = 0.05
# The prior probability that the failure is not seen again at any level.
NEVER_AGAIN = 0.1


class BudgetSpentError(Exception):
    """All allowed runs were made."""


@dataclass(frozen=True)
class LeastFailing:
    """The least failing level, an index; None if no level fails any more. `rates` are the final weights of RATES."""

    level: int | None
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The failure rate of the levels that fail, as far as the runs tell."""
        return mean_rate(self.rates)


def least_failing(
    levels: int,
    fails: Callable[[int], int | None],
    error: float = MOST_ERROR,
    rates: Sequence[float] = RATE_PRIOR,
    prior: Sequence[float] | None = None,
) -> LeastFailing:
    """Search levels 0 to `levels` - 1, where each level includes all levels below it.

    - `fails`: makes a run of a level and returns the level at which it failed, at most the level asked for; None if it
      passed. It may raise BudgetSpentError.
    - `rates`: the prior weights of RATES.
    - `prior`: the prior weight of each level and, last, that none fails.

    Raises:
        ValueError: when there are no levels, or the number of weights is wrong.
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
