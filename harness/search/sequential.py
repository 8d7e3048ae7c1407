"""Tests of pass rates that may be looked at after every run, and ended at any of them."""

from dataclasses import dataclass
from math import log

# Weight of what is guessed before the first run; the rates are learnt fastest with it (Turner, Ly and Gruenwald 2024).
PRIOR_WEIGHT = 0.18


@dataclass(frozen=True)
class BinomialCount:
    """Runs, and how many of them passed."""

    passes: int = 0
    runs: int = 0

    def add(self, *, passed: bool) -> "BinomialCount":
        """With one run more."""
        return BinomialCount(self.passes + passed, self.runs + 1)

    def __add__(self, other: "BinomialCount") -> "BinomialCount":
        return BinomialCount(self.passes + other.passes, self.runs + other.runs)

    @property
    def rate(self) -> float:
        """An estimate of the pass rate that is never 0 or 1."""
        return (self.passes + PRIOR_WEIGHT) / (self.runs + 2 * PRIOR_WEIGHT)


@dataclass(frozen=True)
class PairedTest:
    """A test whether two arms, run in pairs, have different pass rates.

    `evidence` is a product of likelihood ratios: each pair's under the rates that the pairs before it suggest, over
    that under their mean. Where the rates are equal (whatever they are, and also where they drift from pair to pair) it
    ever exceeds 1/a at most with probability a (Turner, Ly and Gruenwald 2024, "Generic E-variables for exact
    sequential k-sample tests that allow for optional stopping").
    """

    one: BinomialCount = BinomialCount()
    other: BinomialCount = BinomialCount()
    log_evidence: float = 0.0

    def add(self, one: bool, other: bool) -> "PairedTest":
        """With one pair more: whether each passed."""
        mean = (self.one.rate + self.other.rate) / 2
        gained = sum(
            _log_likelihood(rate, passed=passed) - _log_likelihood(mean, passed=passed)
            for rate, passed in ((self.one.rate, one), (self.other.rate, other))
        )
        return PairedTest(self.one.add(passed=one), self.other.add(passed=other), self.log_evidence + gained)

    def shows_difference(self, error: float) -> bool:
        """Return whether equal rates are refuted; with equal rates at most with probability `error`, at any look."""
        return self.log_evidence >= -log(error)


def log_ratio(count: BinomialCount, likely: float, unlikely: float) -> float:
    """Return the logarithm of how many times likelier the runs are at the pass rate `likely` than at `unlikely`.

    A sequential test of the one against the other stops where it leaves +-log((1-e)/e), and is then wrong about as
    often as e (Wald 1945).
    """
    failures = count.runs - count.passes
    return count.passes * log(likely / unlikely) + failures * log((1 - likely) / (1 - unlikely))


def _log_likelihood(rate: float, *, passed: bool) -> float:
    return log(rate if passed else 1 - rate)
