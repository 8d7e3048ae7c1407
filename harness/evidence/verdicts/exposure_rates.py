"""Bounds of a failure rate per hour that stay valid when they are evaluated at any time."""

from functools import cache
from typing import Final

# As for pass rates: what fails rarely weighs most.
NEAR_ZERO: Final = 0.25
# Doublings to where a bound may be, and halvings to where it is: to a billionth of it.
HALVINGS: Final = 60


def mtbf_bound(failures: int, hours: float, confidence: float) -> float:
    """The mean time between failures, in hours, is above this with `confidence`, however often it was looked at.

    Raises:
        ValueError: when the numbers are negative, or `confidence` is no probability.
    """
    if failures < 0 or hours < 0 or not 0 < confidence < 1:
        raise ValueError(f"{failures} failures in {hours} hours at confidence {confidence}")
    return hours / expected_failures(failures, confidence)


def failure_rate_bound(failures: int, hours: float, confidence: float) -> float:
    """The failure rate per hour is below this with `confidence`, however often it was looked at; infinite at no hours.

    Raises:
        ValueError: as `mtbf_bound`.
    """
    mtbf = mtbf_bound(failures, hours, confidence)
    return 1 / mtbf if mtbf else float("inf")


@cache
def expected_failures(failures: int, confidence: float) -> float:
    """Return the largest number of failures to be expected in a time in which there were so many.

    For failures that come at a constant rate r (a Poisson process), the likelihood ratio of rates u r0 against r0,
    averaged over u in (0, 1) with density a u^(a-1), is a supermartingale for every r at or above r0. By Ville's
    inequality it exceeds 1/(1-confidence) at any time at most with probability 1-confidence. With n failures and
    x = r0 T it is

        E(x, n) = a integral_0^1 u^(a+n-1) exp(x (1-u)) du = a sum_k x^k / ((a+n) (a+n+1) ... (a+n+k)),

    (Kummer's form of the incomplete gamma function, DLMF 8.7.1), and this is the x at which it is 1/(1-confidence).
    """
    needed = 1 / (1 - confidence)
    low, high = 0.0, 1.0
    while not _exceeds(high, failures, needed):
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _exceeds(middle, failures, needed):
            high = middle
        else:
            low = middle
    return high


def _exceeds(x: float, failures: int, needed: float) -> bool:
    """Return whether E(x, failures) is above `needed`; it grows with x."""
    total, summand, k = 0.0, NEAR_ZERO / (NEAR_ZERO + failures), 0
    while summand > total * 1e-16:
        total += summand
        if total > needed:
            return True
        k += 1
        summand *= x / (NEAR_ZERO + failures + k)
    return total > needed
