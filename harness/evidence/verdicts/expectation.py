"""The prospects of a training of so many hours in a cell, from the bounds of its failure rate. Pure."""

from dataclasses import asdict, dataclass
from math import exp, expm1, floor, inf
from typing import Any

from harness.evidence.verdicts.exposure_rates import failure_rate_bound
from harness.evidence.verdicts.totals import Totals

HOUR = 3600.0
# Between checkpoints, as the app writes them where nothing else is asked for.
CHECKPOINT_SECONDS = 60.0
# Detection, reset and restart, where no restart was measured: the longest limit of a step, a probe, and the imports.
RESTART_SECONDS = 300.0

# Of a training that takes so many times its hours nobody needs the number.
HOPELESS = 100


@dataclass(frozen=True)
class Expectation:
    """Prospects of `hours` of work: each number is from a bound, so that the truth is better with its confidence.

    `uninterrupted`: the chance that nothing interrupts it. `restarts`: their expected number. `takes`: expected hours.
    `within`: whether a training of that length is one that the bounds are about; a longer one may age as none did.
    """

    hours: float
    uninterrupted: float
    restarts: float
    takes: float
    within: bool

    @property
    def plain(self) -> dict[str, Any]:
        """Return it as plain values; what is infinite is null."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}

    @property
    def in_words(self) -> str:
        """Return it in one sentence."""
        if self.takes == inf:
            return f"nothing can be said of {self.hours:g} h: no hours of training were seen yet"
        seldom = self.uninterrupted < 0.01  # noqa: PLR2004
        chance = "hardly a chance (under 1 %)" if seldom else f"a chance above {floor(self.uninterrupted * 100)} %"
        restarts = f"{self.restarts:.1f}" if self.restarts < 10 else f"{self.restarts:.0f}"  # noqa: PLR2004
        if self.takes > HOPELESS * self.hours:
            return f"{self.hours:g} h of training may never end: by these runs they take over {HOPELESS} times as long"
        said = (
            f"{self.hours:g} h of training end uninterrupted with {chance}, "
            f"take fewer than {restarts} restarts on average, and less than {self.takes:.1f} h"
        )
        return said if self.within else f"{said}; that is longer than the runs it rests on, and may be worse"


def expected_hours(
    hours: float,
    failures_per_hour: float,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    restart_seconds: float = RESTART_SECONDS,
) -> float:
    """Return the expected hours of a training that is resumed from its checkpoints: T/c (1/r + s)(e^(rc) - 1).

    T hours of work, a checkpoint every c, a restart that takes s, failures at rate r: each piece of length c is made
    again from its beginning until it ends without a failure (Daly 2006, "A higher order estimate of the optimum
    checkpoint interval", without the time to write one).
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
    """Return what a training of so many hours can expect; rates are upper bounds, `longest` in hours.

    Failures in a burst are one incident for the chance to end uninterrupted, and all of them are restarts.
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
    """Return what a training of so many hours can expect after so many failures in the hours that were seen.

    Both rates are taken at their bounds, each with the confidence.
    """
    return expectation(
        hours,
        failure_rate_bound(failures, hours_seen, confidence),
        failure_rate_bound(incidents, hours_seen, confidence),
        longest,
        restart_seconds=RESTART_SECONDS if restart_seconds is None else restart_seconds,
    )


def expectation_of_totals(totals: Totals, hours: float, confidence: float) -> Expectation:
    """Return what a training of so many hours can expect after what runs showed."""
    counted = (totals.failures, totals.incidents, totals.hours, totals.longest)
    return expectation_of(hours, *counted, confidence, totals.restart_seconds)
