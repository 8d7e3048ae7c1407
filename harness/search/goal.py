"""The goal of a campaign without a fixed number of runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One cell `among` so many shown to have a pass rate above `rate`, or `every` one shown to be above or below it.

    `confidence` is that of the answer where one cell is looked for, and that of each claim where all are settled.
    `budget` is what the campaign may take in seconds, None where it may take what it takes.
    """

    rate: float
    confidence: float
    every: bool = False
    among: int = 1
    budget: float | None = None

    @property
    def of_each(self) -> float:
        """The confidence a claim about a single cell needs.

        The best of many cells looks better than it is: a search divides what it may err by their number (Bonferroni).
        """
        return self.confidence if self.every else 1 - (1 - self.confidence) / self.among
