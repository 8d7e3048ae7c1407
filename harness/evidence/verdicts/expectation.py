"""The prospects of a training of a given length in a cell, from the bounds of its failure rate. Pure."""

from dataclasses import asdict, dataclass
from math import ceil, exp, expm1, floor, inf
from typing import Any

from harness.evidence.verdicts.exposure_rates import failure_rate_bound
from harness.evidence.verdicts.totals import Totals

HOUR = 3600.0
# Time between checkpoints, as the app writes them by default.
CHECKPOINT_SECONDS = 60.0
# Time for detection, reset and restart, where no restart was measured: the longest limit of a step, a probe, and the
# imports.
RESTART_SECONDS = 300.0

# If a training takes more than this many times its hours, the exact number is of no use.
HOPELESS = 100


@dataclass(frozen=True)
class Expectation:
    """The prospects of `hours` of training. Each number is from a bound, so the truth is better with that confidence.

    `uninterrupted`: the probability that nothing interrupts the training.
    `restarts`: the expected number of restarts.
    `takes`: the expected duration, in hours.
    `within`: whether the bounds rest on trainings of that length; a longer training may age as none before.
    """

    hours: float
    uninterrupted: float
    restarts: float
    takes: float
    within: bool

    @property
    def plain(self) -> dict[str, Any]:
        """The expectation as plain values; infinity becomes null."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}

    @property
    def in_words(self) -> str:
        """The expectation in one sentence."""
        if self.takes == inf:
            return f"nothing can be said about {self.hours:g} h: no training was seen yet"
        seldom = self.uninterrupted < 0.01  # noqa: PLR2004
        chance = "hardly a chance (under 1 %)" if seldom else f"a chance above {floor(self.uninterrupted * 100)} %"
        if self.takes > HOPELESS * self.hours:
            return f"{self.hours:g} h of training may take over {HOPELESS} times as long: these runs show no better"
        said = (
            f"{self.hours:g} h of training end uninterrupted with {chance}, "
            f"take fewer than {_rounded_up(self.restarts)} restarts on average, "
            f"and less than {_rounded_up(self.takes)} h"
        )
        return said if self.within else f"{said}; that is longer than these runs, and may be worse"


def _rounded_up(bound: float) -> str:
    """Return an upper bound with one decimal, rounded up because a smaller number would claim more."""
    return f"{ceil(bound * 10 - 1e-9) / 10:.1f}"


def expected_hours(
    hours: float,
    failures_per_hour: float,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    restart_seconds: float = RESTART_SECONDS,
) -> float:
    """Return the expected hours of a training that resumes from its checkpoints: T/c (1/r + s)(e^(rc) - 1).

    T is the hours of work, c the time between checkpoints, s the time of a restart and r the failure rate. Each piece
    of length c is made again from its beginning until it ends without a failure (Daly 2006, "A higher order estimate of
    the optimum checkpoint interval", without the time to write a checkpoint).
    """
    c, s, r = checkpoint_seconds / HOUR, restart_seconds / HOUR, failures_per_hour
    if r == 0:
        return hours
    if r == inf or r * c > 700:  # noqa: PLR2004 (where exp is too large for a float)
        return inf
    return hours / c * (1 / r + s) * expm1(r * c)


def expectation(
    hours: float,
    failures_per_hour: float,
    incidents_per_hour: float,
    longest: float,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    restart_seconds: float = RESTART_SECONDS,
) -> Expectation:
    """Return what a training of `hours` hours can expect. Rates are upper bounds; `longest` is in hours.

    The failures of one burst are one incident for the probability to end uninterrupted, but each of them is a restart.
    """
    takes = expected_hours(hours, failures_per_hour, checkpoint_seconds, restart_seconds)
    c = checkpoint_seconds / HOUR
    restarts = hours / c * expm1(failures_per_hour * c) if takes < inf else inf
    return Expectation(hours, exp(-incidents_per_hour * hours), restarts, takes, hours <= longest)


def expectation_of(
    hours: float,
    failures: int,
    incidents: int,
    hours_seen: float,
    longest: float,
    confidence: float,
    restart_seconds: float | None = None,
) -> Expectation:
    """Return what a training of `hours` hours can expect after these failures in the hours that were seen.

    Both rates are taken at their bounds, each with this confidence.
    """
    return expectation(
        hours,
        failure_rate_bound(failures, hours_seen, confidence),
        failure_rate_bound(incidents, hours_seen, confidence),
        longest,
        restart_seconds=RESTART_SECONDS if restart_seconds is None else restart_seconds,
    )


def expectation_of_totals(totals: Totals, hours: float, confidence: float) -> Expectation:
    """Return what a training of `hours` hours can expect, from the totals of runs."""
    counted = (totals.failures, totals.incidents, totals.hours, totals.longest)
    return expectation_of(hours, *counted, confidence, totals.restart_seconds)
