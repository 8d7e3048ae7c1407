"""Block-bootstrap intervals of weighted means: whole sessions, or runs of them, are drawn with replacement."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from vpoc.arrays import Floats, Ints
from vpoc.data.prng import words

LEVEL = 0.95
SHORTEST_RUN, LONGEST_RUN = 5, 10
FEWEST_RUNS = 10
"""With fewer runs an interval does not have its nominal level, so nothing is concluded from it."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided 95 % interval."""

    value: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return the interval as plain JSON values."""
        return vars(self).copy()


def run_length(sessions: int, reach: int) -> int:
    """Return the number of sessions drawn together.

    It is 1 if labels end with their session, else sessions^(1/3), between 5 and 10. The order of growth is that of
    Hall, Horowitz and Jing (1995).
    """
    if reach == 0:
        return 1
    usual = min(max(round(float(np.cbrt(sessions))), SHORTEST_RUN), LONGEST_RUN)
    return min(usual, max(sessions // 2, 1))


@dataclass(frozen=True)
class Bootstrap:
    """`counts` [replicates, sessions]: how often each session is drawn.

    `run`: the number of sessions drawn together.
    """

    counts: Floats
    run: int

    @staticmethod
    def draw(sessions: int, run: int, replicates: int, seed: int) -> "Bootstrap":
        """Draw a circular block bootstrap (Politis and Romano 1992) of runs of `run` sessions.

        The first session follows the last.
        """
        runs = -(-sessions // run)
        start = (words(seed, 0, replicates * runs) % np.uint64(sessions)).astype(np.int64).reshape(replicates, runs)
        drawn = ((start[:, :, None] + np.arange(run)) % sessions).reshape(replicates, -1)[:, :sessions]
        cells = (np.arange(replicates)[:, None] * sessions + drawn).ravel()
        counts = np.bincount(cells, minlength=replicates * sessions).reshape(replicates, sessions)
        return Bootstrap(counts.astype(np.float64), run)

    @property
    def runs(self) -> int:
        """The number of independent pieces in the sessions."""
        return int(self.counts.shape[1]) // self.run

    def ratio(self, top: Floats, bottom: Floats) -> Interval:
        """Return the sum of `top` over the sum of `bottom`, both [sessions].

        Replicates whose bottom sum is zero are left out.
        """
        tops, bottoms = self.sums(np.column_stack([top, bottom])).T
        some = bottoms > 0
        return self.interval(float(top.sum() / bottom.sum()), tops[some] / bottoms[some])

    def sums(self, columns: Floats) -> Floats:
        """Return sums of `columns` [sessions, columns] in each replicate, [replicates, columns]."""
        # Not `@`, because BLAS adds up in an order that depends on its threads.
        sums: Floats = np.einsum("rs,sc->rc", self.counts, columns)
        return sums

    def interval(self, value: float, replicates: Floats) -> Interval:
        """Return the interval from the percentiles of `replicates` [replicates]."""
        low, high = np.quantile(replicates, [self.tail, 1 - self.tail])
        return Interval(value, float(low), float(high))

    @property
    def tail(self) -> float:
        """Share of replicates beyond each end of an interval.

        Expanded percentiles (Hesterberg 2015): with few runs, plain ones are too narrow.
        """
        runs = max(self.runs, 2)
        normal = NormalDist()
        z = normal.inv_cdf((1 + LEVEL) / 2)
        return normal.cdf(-math.sqrt(runs / (runs - 1)) * _student(z, runs - 1))


def _student(z: float, freedom: int) -> float:
    """Return the quantile of Student's t that corresponds to the normal quantile `z` (Abramowitz and Stegun 26.7.5)."""
    terms: tuple[float, ...] = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def by_session(sessions: Ints, values: Floats) -> Floats:
    """Return the sums of `values` [rows, columns] by session, [sessions, columns].

    `sessions` [rows]: the session number of each row, in order.
    """
    _, place = np.unique(sessions, return_inverse=True)
    count = int(place[-1]) + 1
    return np.column_stack([np.bincount(place, column, count) for column in values.T]).astype(np.float64)
