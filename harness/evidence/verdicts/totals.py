"""Totals of runs that are counted together: starts, and hours of training with their failures. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from harness.evidence.row import Row
from harness.evidence.verdicts.counting import Counts, RunCount
from harness.evidence.verdicts.exposure_rates import mtbf_bound
from harness.evidence.verdicts.rates import lower_bound
from harness.evidence.verdicts.shared_time import is_one_incident

HOUR = 3600.0
# A claim holds for trainings as long as this many runs were: a longer run may age as no other did.
ENOUGH_AS_LONG = 3


class Life(NamedTuple):
    """The hours that a run trained after its first step, and whether it failed then."""

    hours: float
    failed: bool = False


@dataclass(frozen=True)
class Totals:
    """Totals of runs.

    Attributes:
        started: The number of starts that succeeded.
        starts: The number of starts.
        failures: The number of failures after the first step.
        lives: One for each run, the longest first; also for runs that were interrupted while they progressed.
        boots: The number of different boots on which the counted runs were made.
        incidents: The number of failures, where those of one burst are one.
        restart_seconds: The median of what a failure cost beside the lost steps; None where nothing was measured.
    """

    started: int = 0
    starts: int = 0
    failures: int = 0
    lives: tuple[Life, ...] = ()
    boots: int = 0
    incidents: int = 0
    restart_seconds: float | None = None

    @cached_property
    def lengths(self) -> tuple[float, ...]:
        """The hours of each run after its first step, the longest first."""
        return tuple(life.hours for life in self.lives)

    @cached_property
    def hours(self) -> float:
        """The hours of training after the first steps."""
        return sum(self.lengths)

    @property
    def longest(self) -> float:
        """The hours up to which a claim holds: as long as the third-longest run; 0 where there are fewer runs."""
        return self.lengths[ENOUGH_AS_LONG - 1] if len(self.lengths) >= ENOUGH_AS_LONG else 0.0

    def start_rate(self, confidence: float) -> float:
        """Return the lower bound of the share of starts that succeed."""
        return lower_bound(self.started, self.starts, confidence)

    def mtbf(self, confidence: float) -> float:
        """Return the lower bound of the mean time between failures, in hours."""
        return mtbf_bound(self.failures, self.hours, confidence)


def totals_of(rows: Iterable[Row], counts: Counts) -> Totals:
    """Return the totals of runs.

    A start succeeds when the first training step ends; a run that resumed behind its last step, and passed, made no
    start. Of a run that was interrupted while it progressed only the hours count; of a run whose hours are not known,
    only the start; of a run that was not verified, only a failure.
    """
    paired = [
        (row, counts[row.run_id]) for row in rows if not row.is_unverified or counts[row.run_id].counts_as == "failed"
    ]
    counted = [row for row, count in paired if count.counts]
    failed = [row for row, count in paired if count.counts_as == "failed" and row.first_step]
    lives = (
        Life(row.exposure_seconds / HOUR, count.counts_as == "failed")
        for row, count in paired
        if row.exposure_seconds and (count.counts or count.hours_count)
    )
    return Totals(
        started=sum(1 for row in counted if row.first_step),
        starts=len(counted) - sum(1 for row, count in paired if count.counts_as == "passed" and _had_no_step_left(row)),
        failures=len(failed),
        lives=tuple(sorted(lives, reverse=True)),
        # A boot on which nothing began to train shows a failure, and not that the cell works there.
        boots=len({(row.machine, row.boot_id) for row, count in paired if count.counts and _trained(row, count)}),
        incidents=_incidents(failed, counts),
        restart_seconds=median(costs) if (costs := [_cost(row) for row in failed if row.exposure_seconds]) else None,
    )


def _trained(row: Row, count: RunCount) -> bool:
    # Earlier harnesses did not note the first step.
    return row.first_step is not False or count.counts_as == "passed"


def _had_no_step_left(row: Row) -> bool:
    # A program of the user's own may train without reporting it.
    return row.first_step is False and not row.own_program


def _cost(row: Row) -> float:
    """Return the seconds of a failed run in which it did not train.

    They are those up to the first step, which the next attempt needs, too, and those to find the failure and to
    recover.
    """
    return max(0.0, row.finished - row.started - (row.exposure_seconds or 0.0))


def _incidents(failed: Iterable[Row], counts: Counts) -> int:
    """Return the number of bursts: a failure more than a quarter of an hour after the last one begins another.

    So does a failure of a run beside another one, on another GPU, unless one event caused both.
    """
    in_time = sorted(failed, key=lambda row: row.finished)
    return bool(in_time) + sum(not is_one_incident(sooner, later, counts) for sooner, later in pairwise(in_time))
