"""Puts totals and claims into words."""

from collections import Counter
from collections.abc import Collection
from math import floor

from harness.base.durations import span
from harness.base.wording import many
from harness.evidence.records import is_of_training
from harness.evidence.row import Row
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Threshold, Verdict
from harness.matrix.cells import Verdicts

TIERS_IN_WORDS = "seen (too little to rely on) < candidate < good < known-good; docs/verdicts.md"
UNCOMMITTED = "its image was made from changes that no commit has"


def in_words(totals: Totals) -> str:
    """Return starts, hours and failures: `24 of 24 starts, 7.1 h of training, 1 failure, 2 boots`."""
    hours = f"{hours_in_words(totals.hours)} of training"
    return f"{totals.started} of {totals.starts} starts, {hours}, {_failures(totals)}, {many(totals.boots, 'boot')}"


def claim_in_words(verdict: Verdict) -> str:
    """Return what a verdict claims, and up to which length of training.

    Bounds are rounded down, so that no more is claimed than was shown.
    """
    said = f"more than {floor(verdict.start_low * 100 + 1e-9)} % of its starts succeed"
    if shows_mtbf(verdict.mtbf_low):
        said += f", and its mean time between failures is above {hours_in_words(verdict.mtbf_low)}"
    if verdict.totals.longest:
        said += f", in trainings up to {hours_in_words(verdict.totals.longest)}"
    return said


def runs_in_words(rows: Collection[Row]) -> str:
    """Return the number of runs; the attempts of a training count as one: `3 runs and 1 training (2 attempts)`."""
    attempts = Counter(row.campaign for row in rows if is_of_training(row.campaign))
    runs, trainings = len(rows) - attempts.total(), len(attempts)
    several = f" ({attempts.total()} attempts)" if attempts.total() > trainings else ""
    said = [many(runs, "run")] if runs or not trainings else []
    return " and ".join([*said, *([many(trainings, "training") + several] if trainings else [])])


def work_in_words(one: Row | Verdict) -> str:
    """Return a workload with the name of its data: `quick on merged.csv`."""
    return f"{one.workload} on {one.data}" if one.data else one.workload


def hours_in_words(hours: float) -> str:
    """Return hours, rounded down: `3.4 h`, `12 min`, `9 s`, or `under 1 s`."""
    if hours >= 1:
        return f"{floor(hours * 10 + 1e-9) / 10:.1f} h"
    if hours * 60 >= 1:
        return f"{floor(hours * 60 + 1e-9)} min"
    seconds = floor(hours * 3600 + 1e-9)
    return "under 1 s" if hours and not seconds else f"{seconds} s"


def threshold_in_words(tier: Threshold, thresholds: Verdicts) -> str:
    """Return what a tier takes, in words: `above 80 % of starts, MTBF above 1.0 h`; an MTBF of 0 is not named."""
    starts, hours = getattr(thresholds, tier), getattr(thresholds.mtbf_hours, tier)
    lasts = f", MTBF above {span(hours * 3600)}" if hours else ""
    return f"above {starts * 100:g} % of starts{lasts}"


def shows_mtbf(mtbf_low: float) -> bool:
    """Return whether a bound of the mean time between failures, in hours, is worth showing: a minute or more."""
    return mtbf_low * 60 >= 1


def mtbf_in_words(totals: Totals, mtbf_low: float) -> str:
    """Return the bound of the mean time between failures; below a minute, why there is none: `no MTBF yet: ...`."""
    if shows_mtbf(mtbf_low):
        return f"MTBF above {hours_in_words(mtbf_low)}"
    return f"no MTBF yet: {_failures(totals)} in {hours_in_words(totals.hours)} of training"


def _failures(totals: Totals) -> str:
    return f"{totals.failures or 'no'} failure{'s' if totals.failures > 1 else ''}"
