"""Bounds of a pass rate that stay valid when they are evaluated after every run."""

from functools import cache
from itertools import accumulate, repeat
from operator import mul, truediv
from typing import Final

# Exponent of the weight of rates. Rates near 1 weigh most, because a stack that works mostly works always: that takes
# fewer straight passes than a uniform weight (33 instead of 43 for a rate above .9), and hardly more after one failure.
NEAR_ONE: Final = 0.25
# Halvings of the interval from 0 to 1, which find a bound to 1e-9.
HALVINGS: Final = 30


def lower_bound(passes: int, runs: int, confidence: float) -> float:
    """Return a lower bound of the pass rate, which holds with `confidence`, however often it is computed meanwhile.

    For every rate p the likelihood of the runs, averaged over rates above p with weight (1-q)^(NEAR_ONE-1), over the
    likelihood at p is a supermartingale where the true rate is p or lower; by Ville's inequality it exceeds
    1/(1-confidence) at any time at most with probability 1-confidence (Robbins 1970; Howard et al. 2021,
    "Time-uniform, nonparametric, nonasymptotic confidence sequences"). The bound is the rate where it just does.

    Raises:
        ValueError: when there are more passes than runs, or `confidence` is not a probability.
    """
    if not 0 <= passes <= runs or not 0 < confidence < 1:
        raise ValueError(f"{passes} passes of {runs} runs at confidence {confidence}")
    return _lower_bound(passes, runs - passes, confidence)


def upper_bound(passes: int, runs: int, confidence: float) -> float:
    """Return an upper bound of the pass rate, from the lower bound of the failure rate.

    Raises:
        ValueError: as `lower_bound`.
    """
    return 1 - lower_bound(runs - passes, runs, confidence)


@cache
def runs_to_show(failures: int, rate: float, confidence: float) -> int:
    """Return the fewest runs, with `failures` among them, for which the lower bound of the pass rate exceeds `rate`."""
    enough = failures + 1
    while lower_bound(enough - failures, enough, confidence) <= rate:
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if middle > failures and lower_bound(middle - failures, middle, confidence) > rate:
            enough = middle
        else:
            too_few = middle
    return enough


@cache
def _lower_bound(passes: int, failures: int, confidence: float) -> float:
    """Return the rate at which the averaged likelihood over that at the rate is 1/(1-confidence).

    This ratio falls where the rate rises.

    With s passes, f failures, w = NEAR_ONE, b = w + f and the incomplete beta function I it is

        B(1 + s, b) (1 - I_rate(1 + s, b)) / (B(1, w) (1 - I_rate(1, w)) rate^s (1 - rate)^f).

    1 + s being an integer, 1 - I_x(1 + s, b) = (1 - x)^b sum_{j=0..s} x^j (b)_j / j! (s times DLMF 8.17.20, down to
    1 - I_x(1, b) = (1 - x)^b), so that the powers of 1 - rate cancel. What is left is w / (b + s) times a sum whose
    last summand is 1, and whose summand j - 1 is j / ((b + j - 1) rate) times summand j.
    """
    b = NEAR_ONE + failures
    enough = (b + passes) / (NEAR_ONE * (1 - confidence))
    factors = [j / (b + j - 1) for j in range(passes, 0, -1)]
    low, high = 0.0, 1.0
    for _ in range(HALVINGS if passes else 0):
        rate = (low + high) / 2
        if sum(accumulate(map(truediv, factors, repeat(rate)), mul), 1.0) > enough:
            low = rate
        else:
            high = rate
    return low
