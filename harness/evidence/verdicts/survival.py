"""The share of trainings that survive to an age: the product-limit estimate with a band that holds for few failures."""

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from math import isclose
from typing import NamedTuple

from harness.evidence.verdicts.totals import Life


class SurvivalPoint(NamedTuple):
    """The share of trainings without a failure, and its band, from an age in hours on."""

    hours: float
    share: float
    low: float
    high: float


class _Product(NamedTuple):
    """The first two moments of a product of beta-distributed factors."""

    mean: float = 1.0
    square: float = 1.0

    def times(self, at_risk: int) -> "_Product":
        """Return the product with a factor Beta(at_risk, 1), for one failure among `at_risk`."""
        return _Product(self.mean * at_risk / (at_risk + 1), self.square * at_risk / (at_risk + 2))

    def quantile(self, share: float) -> float:
        """Return a quantile of the beta distribution with these moments."""
        if self.mean in (0.0, 1.0):
            return self.mean
        total = (self.mean - self.square) / (self.square - self.mean**2)
        if isclose(total * (1 - self.mean), 1, rel_tol=1e-6):
            # Beta(n, 1), as without any failure.
            return float(share ** ((1 - self.mean) / self.mean))
        # SciPy takes time to import, so only callers that need it wait for that.
        from scipy.special import betaincinv  # noqa: PLC0415

        return float(betaincinv(total * self.mean, total * (1 - self.mean), share))


def survival(lives: Iterable[Life], confidence: float) -> tuple[SurvivalPoint, ...]:
    """Return the product-limit estimate (Kaplan and Meier 1958), at age 0 and after each age at which a run ended.

    A run that ended without a failure says nothing about later ages. The band holds at each age separately: it is the
    beta product confidence procedure (Fay, Brittain and Proschan 2013), which for runs of equal length is Clopper and
    Pearson's interval, and is useful also without any failure. Beyond the longest run its lower end is 0.
    """
    lives = list(lives)
    ended = Counter(life.hours for life in lives)
    failed = Counter(life.hours for life in lives if life.failed)
    tail, share, failures, points = (1 - confidence) / 2, 1.0, _Product(), []
    left = accumulate((ended[hours] for hours in sorted(ended)), int.__sub__, initial=len(lives))
    for hours, at_risk in zip([0.0, *sorted(ended)], [len(lives), *left], strict=False):
        for number in range(failed[hours]):
            failures = failures.times(at_risk - number)
        share *= 1 - failed[hours] / at_risk if at_risk else 1.0
        longer = at_risk - ended[hours]
        points.append(SurvivalPoint(hours, share, failures.times(longer).quantile(tail), failures.quantile(1 - tail)))
    return tuple(points) if lives else ()
