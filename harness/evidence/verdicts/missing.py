"""The runs that are missing to reach a threshold, if none of them fails. Pure."""

from dataclasses import dataclass
from math import ceil

from harness.base.wording import listed, many
from harness.evidence.verdicts.exposure_rates import expected_failures
from harness.evidence.verdicts.rates import runs_to_show
from harness.evidence.verdicts.totals import Totals
from harness.evidence.verdicts.verdict import Threshold
from harness.matrix.cells import Verdicts


@dataclass(frozen=True)
class Shortfall:
    """Missing starts, hours of training after the first step, and boots; all 0 where nothing is missing."""

    starts: int
    hours: float
    boots: int

    @property
    def is_empty(self) -> bool:
        """True if the threshold is reached."""
        return not (self.starts or self.hours or self.boots)

    @property
    def in_words(self) -> str:
        """The missing runs in words, such as `5 more starts, 3.4 more hours of training and a run after a reboot`."""
        said = []
        if self.starts:
            said.append(many(self.starts, "more start"))
        if self.hours:
            # Rounded up, so that no less than needed is promised.
            said.append(f"{ceil(self.hours * 10) / 10:.1f} more hours of training")
        if self.boots:
            said.append("a run after a reboot" if self.boots == 1 else f"runs after {self.boots} reboots")
        return listed(said) if said else "nothing"


def missing_to(totals: Totals, threshold: Threshold, thresholds: Verdicts, confidence: float) -> Shortfall:
    """Return what is missing to reach a threshold, with each bound at this confidence."""
    rate: float = getattr(thresholds, threshold)
    mtbf: float = getattr(thresholds.mtbf_hours, threshold)
    boots = thresholds.known_good_boots if threshold == "known_good" else 1
    starts = runs_to_show(totals.starts - totals.started, rate, confidence) - totals.starts
    hours = mtbf * expected_failures(totals.failures, confidence)
    enough = mtbf == 0 or totals.mtbf(confidence) > mtbf
    return Shortfall(
        max(0, starts), 0.0 if enough else max(hours - totals.hours, 1e-9), max(0, boots - max(1, totals.boots))
    )
