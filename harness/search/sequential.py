"""Tests of pass rates that may be looked at after every run, and stopped at any time."""

from dataclasses import dataclass
from math import log

# Weight of the guess before the first run; with this weight the rates are learnt fastest (Turner, Ly and Gruenwald
# 2024).
PRIOR_WEIGHT = 0.18


@dataclass(frozen=True)
class BinomialCount:
    """Runs, and how many of them passed."""

    passes: int = 0
    runs: int = 0

    def add(self, *, passed: bool) -> "BinomialCount":
        """Return the count with one more run."""
        return BinomialCount(self.passes + passed, self.runs + 1)

    def __add__(self, other: "BinomialCount") -> "BinomialCount":
        return BinomialCount(self.passes + other.passes, self.runs + other.runs)

    @property
    def in_words(self) -> str:
        """The count as in `7 of 8 passed`."""
        return f"{self.passes} of {self.runs} passed"

    @property
    def rate(self) -> float:
        """An estimate of the pass rate that is never 0 or 1."""
        return (self.passes + PRIOR_WEIGHT) / (self.runs + 2 * PRIOR_WEIGHT)


@dataclass(frozen=True)
class PairedTest:
    """A test whether two arms, run in pairs, have different pass rates.

    The evidence is a product of likelihood ratios: the likelihood of each pair under the rates that the pairs before it
    suggest, divided by that under the mean of these rates. If the rates are equal, whatever they are and even if they
    drift from pair to pair, the evidence ever exceeds 1/a with a probability of at most a (Turner, Ly and Gruenwald
    2024, "Generic E-variables for exact sequential k-sample tests that allow for optional stopping").
    """

    one: BinomialCount = BinomialCount()
    other: BinomialCount = BinomialCount()
    log_evidence: float = 0.0

    def add(self, one: bool, other: bool) -> "PairedTest":
        """Return the test with one more pair, given whether each run passed."""
        mean = (self.one.rate + self.other.rate) / 2
        gained = sum(
            _log_likelihood(rate, passed=passed) - _log_likelihood(mean, passed=passed)
            for rate, passed in ((self.one.rate, one), (self.other.rate, other))
        )
        return PairedTest(self.one.add(passed=one), self.other.add(passed=other), self.log_evidence + gained)

    def shows_difference(self, error: float) -> bool:
        """Return whether equal rates are refuted; that happens to equal rates with a probability of at most `error`."""
        return self.log_evidence >= -log(error)


def log_ratio(count: BinomialCount, likely: float, unlikely: float) -> float:
    """Return the logarithm of how many times likelier the runs are at the pass rate `likely` than at `unlikely`.

    A sequential test of one rate against the other stops when this value leaves +-log((1-e)/e), and is then wrong with
    a probability of about e (Wald 1945).
    """
    failures = count.runs - count.passes
    return count.passes * log(likely / unlikely) + failures * log((1 - likely) / (1 - unlikely))


def _log_likelihood(rate: float, *, passed: bool) -> float:
    return log(rate if passed else 1 - rate)
