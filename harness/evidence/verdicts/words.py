"""Totals and claims, in words."""

from math import floor

from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Verdict

MINUTES = 60
UNCOMMITTED = "its image was made from changes that no commit has"


def in_words(totals: Totals) -> str:
    """Return starts, hours and failures: `24 of 24 starts, 7.1 h, 1 failure, 2 boots`."""
    failures = "no failure" if not totals.failures else f"{totals.failures} failure{'s' if totals.failures > 1 else ''}"
    boots = f"{totals.boots} boot{'s' if totals.boots > 1 else ''}"
    return f"{totals.started} of {totals.starts} starts, {hours_in_words(totals.hours)}, {failures}, {boots}"


def claim_in_words(verdict: Verdict) -> str:
    """Return what a verdict claims, and up to which length of a training.

    Bounds are rounded down, so as to claim no more than was shown.
    """
    said = f"more than {floor(verdict.start_low * 100 + 1e-9)} % of its starts succeed"
    if verdict.mtbf_low:
        said += f", and its mean time between failures is above {hours_in_words(verdict.mtbf_low)}"
    if verdict.totals.longest:
        said += f", in trainings up to {hours_in_words(verdict.totals.longest)}"
    return said


def hours_in_words(hours: float) -> str:
    """Return hours, rounded down: `3.4 h`, or `12 min`."""
    return f"{floor(hours * 10 + 1e-9) / 10:.1f} h" if hours >= 1 else f"{floor(hours * MINUTES + 1e-9)} min"
