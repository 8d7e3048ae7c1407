"""The goal of a campaign without a fixed number of runs."""

from dataclasses import dataclass

from harness.evidence.verdicts.best_of import confidence_of_best


@dataclass(frozen=True)
class Goal:
    """The goal to show one cell of several to be known-good, or to settle for `every` cell whether it is.

    Known-good means a share of successful starts above `rate` and, if `mtbf_hours` is not 0, a mean time between
    failures above that.

    Attributes:
        rate: the share of successful starts that is to be exceeded.
        confidence: the confidence of the answer if one cell is searched for, or of each claim with `every`.
        every: settle every cell.
        among: the number of cells of which the best is searched for.
        budget: the seconds that the campaign may take; None for no limit.
        mtbf_hours: the mean time between failures that is to be exceeded, in hours.
        boots: the number of boots on which the cell has to run.
    """

    rate: float
    confidence: float
    every: bool = False
    among: int = 1
    budget: float | None = None
    mtbf_hours: float = 0.0
    boots: int = 1

    @property
    def of_each(self) -> float:
        """The confidence that a claim about a single cell needs.

        The best of many cells looks better than it is, so a search divides its allowed error by their number
        (Bonferroni).
        """
        return self.confidence if self.every else confidence_of_best(self.confidence, self.among)
