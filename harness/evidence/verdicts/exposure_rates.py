"""Bounds of a failure rate per hour that stay valid when they are evaluated at any time."""

from functools import cache
from math import inf, log, nextafter, sqrt
from typing import Final

# Exponent of the weight of rates. As for pass rates: rare failures weigh most.
NEAR_ZERO: Final = 0.25
# Largest step of Newton's method, in standard deviations of the number of failures.
FARTHEST: Final = 10
# Newton's method ends at a step below this share of its position.
NEAR_ENOUGH: Final = 1e-12


def mtbf_bound(failures: int, hours: float, confidence: float) -> float:
    """Return a lower bound of the mean time between failures, in hours.

    It holds with `confidence`, however often it is computed meanwhile.

    Raises:
        ValueError: when the numbers are negative, or `confidence` is not a probability.
    """
    if failures < 0 or hours < 0 or not 0 < confidence < 1:
        raise ValueError(f"{failures} failures in {hours} hours at confidence {confidence}")
    return hours / expected_failures(failures, confidence)


def failure_rate_bound(failures: int, hours: float, confidence: float) -> float:
    """Return an upper bound of the failure rate per hour; infinity for no hours.

    It holds with `confidence`, however often it is computed meanwhile.

    Raises:
        ValueError: as `mtbf_bound`.
    """
    mtbf = mtbf_bound(failures, hours, confidence)
    return 1 / mtbf if mtbf else float("inf")


@cache
def expected_failures(failures: int, confidence: float) -> float:
    """Return the largest number of failures to expect in a time in which there were this many.

    For failures that come at a constant rate r (a Poisson process), the likelihood ratio of rates u r0 against r0,
    averaged over u in (0, 1) with density a u^(a-1), is a supermartingale for every r at or above r0. By Ville's
    inequality it exceeds 1/(1-confidence) at any time at most with probability 1-confidence. With n failures and
    x = r0 T it is

        E(x, n) = a integral_0^1 u^(a+n-1) exp(x (1-u)) du = a sum_k x^k / ((a+n) (a+n+1) ... (a+n+k)),

    (Kummer's form of the incomplete gamma function, DLMF 8.7.1), and this is the x at which it is 1/(1-confidence).
    As log E is convex in x, being a cumulant generating function, Newton's method finds that from anywhere.
    """
    needed = 1 / (1 - confidence)
    x, step = 1.0 + failures, inf
    while abs(step) > NEAR_ENOUGH * x:
        ratio, slope = _averaged_ratio(x, failures)
        step = log(ratio / needed) * ratio / slope
        # The step is limited, so that the number stays within the range of a float.
        x -= max(step, -FARTHEST * sqrt(1 + failures))
    # Refined to the last digit: the smallest number that is enough.
    while _averaged_ratio(x, failures)[0] > needed:
        x = nextafter(x, 0)
    while _averaged_ratio(x, failures)[0] <= needed:
        x = nextafter(x, inf)
    return x


def _averaged_ratio(x: float, failures: int) -> tuple[float, float]:
    """Return E(x, failures), and its derivative in x."""
    total, weighted, summand, k = 0.0, 0.0, NEAR_ZERO / (NEAR_ZERO + failures), 0
    while summand > total * 1e-16:
        total += summand
        weighted += k * summand
        k += 1
        summand *= x / (NEAR_ZERO + failures + k)
    return total, weighted / x
