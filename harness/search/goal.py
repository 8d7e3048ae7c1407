"""The goal of a campaign without a fixed number of runs."""

from dataclasses import dataclass

from harness.evidence.verdicts.best_of import confidence_of_best


@dataclass(frozen=True)
class Goal:
    """One cell `among` so many shown to be known-good, or `every` one shown to be so or not.

    Known-good is a share of successful starts above `rate` and, where they are asked for, a mean time between failures
    above `mtbf_hours`, on so many `boots`.

    `confidence` is that of the answer where one cell is looked for, and that of each claim where all are settled.
    `budget` is what the campaign may take in seconds, None where it may take what it takes.
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
        """The confidence a claim about a single cell needs.

        The best of many cells looks better than it is: a search divides what it may err by their number (Bonferroni).
        """
        return self.confidence if self.every else confidence_of_best(self.confidence, self.among)
