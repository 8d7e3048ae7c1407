"""Bounds of a pass rate that stay valid when one looks after every run."""

from math import inf, log
from typing import Final

# Rates near 1 weigh most: a stack that works mostly works always. Fewer straight passes are needed than with a
# uniform weight (33 in place of 43 for a rate above .9), and hardly more where there was one failure.
NEAR_ONE: Final = 0.25
# Halvings of the interval from 0 to 1: a bound is found to 1e-9.
HALVINGS: Final = 30

# Bounds that were computed, by passes, runs and confidence.
known: Final[dict[tuple[int, int, float], float]] = {}


def lower_bound(passes: int, runs: int, confidence: float) -> float:
    """The pass rate is above this with `confidence`, however often it was looked at on the way.

    For every rate p the likelihood of the runs, averaged over rates above p with weight (1-q)^(NEAR_ONE-1), over the
    likelihood at p is a supermartingale where the true rate is p or lower; by Ville's inequality it exceeds
    1/(1-confidence) at any time at most with probability 1-confidence (Robbins 1970; Howard et al. 2021,
    "Time-uniform, nonparametric, nonasymptotic confidence sequences"). The bound is where it just does.

    Raises:
        ValueError: when there are more passes than runs, or `confidence` is no probability.
    """
    if not 0 <= passes <= runs or not 0 < confidence < 1:
        raise ValueError(f"{passes} passes of {runs} runs at confidence {confidence}")
    key = passes, runs, confidence
    if key not in known:
        known[key] = _lower_bound(*key)
    return known[key]


def upper_bound(passes: int, runs: int, confidence: float) -> float:
    """The pass rate is below this with `confidence`: the same of failures.

    Raises:
        ValueError: as `lower_bound`.
    """
    return 1 - lower_bound(runs - passes, runs, confidence)


def _lower_bound(passes: int, runs: int, confidence: float) -> float:
    needed = -log(1 - confidence)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        if passes and _log_evidence_above(rate, passes, runs - passes) > needed:
            low = rate
        else:
            high = rate
    return low


def _log_evidence_above(rate: float, passes: int, failures: int) -> float:
    """Logarithm of the averaged likelihood over the likelihood at `rate`; it falls where the rate rises."""
    # Importing it takes longer than to show bounds that are known.
    from scipy.special import betaincc, betaln  # noqa: PLC0415

    a, b = 1 + passes, NEAR_ONE + failures
    above = float(betaincc(a, b, rate))
    if above == 0:
        return -inf
    after = log(above) + float(betaln(a, b))
    before = log(float(betaincc(1, NEAR_ONE, rate))) + float(betaln(1, NEAR_ONE))
    return after - before - passes * log(rate) - failures * log(1 - rate)
