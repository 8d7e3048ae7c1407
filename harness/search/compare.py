"""Compares how often the runs of cells pass. Pure."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from harness.base.wording import listed, percent
from harness.evidence.verdicts.verdict import Verdict
from harness.search.sequential import BinomialCount

# The probability of finding any difference that does not exist, over all comparisons of one answer.
FAMILY_ERROR = 0.05
POWER = 0.8
RARE = 1e-9


@dataclass(frozen=True, kw_only=True)
class GroupComparison(ABC):
    """How often two groups of runs passed, on the same workload, executor and scope.

    Attributes:
        p_value: the p-value of Fisher's exact test, two-sided.
        adjusted: the p-value after Holm's correction for all comparisons made at once.
        told_apart: a group with a pass rate below this would, with a probability of .8, have been shown to differ from
            a group that passes as often as the better of the two did; None if no rate is low enough.
    """

    cell: str
    workload: str
    workload_hash: str
    data: str
    executor: str
    scope: str
    p_value: float
    adjusted: float
    told_apart: float | None = None

    @property
    @abstractmethod
    def pair(self) -> tuple[BinomialCount, BinomialCount]:
        """The counts of both groups."""

    @property
    def differ(self) -> bool:
        """Return whether a difference is shown."""
        return self.adjusted <= FAMILY_ERROR

    @property
    def plain(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {**asdict(self), "differ": self.differ}

    @property
    def _too_few(self) -> bool:
        """Return whether so many runs show no difference even where all of one group pass, and none of the other."""
        one, two = self.pair
        return fisher(BinomialCount(one.runs, one.runs), BinomialCount(0, two.runs)) > FAMILY_ERROR

    @property
    def conclusion(self) -> str:
        """The circumstances of the comparison, and the finding, in words."""
        work = f"{self.workload} on {self.data}" if self.data else self.workload
        where = f"workload {work}, {self.scope}, {self.executor}"
        p_value = f"p = {self.adjusted:.2g}"
        if self.differ:
            return f"({where}): they differ, {p_value}"
        power = "no lower pass rate would have been told from that of the better with probability .8"
        if self._too_few:
            power = (
                "so few runs could not have shown any two pass rates to differ; 20 runs of each tell 68 % from 100 %, "
                "where only two are compared"
            )
        if self.told_apart is not None:
            rate = f"a pass rate of {percent(self.told_apart)}"
            power = f"{rate} would have been told from that of the better with probability .8"
        return f"({where}): no difference shown, {p_value}; {power}"


Tested = TypeVar("Tested", bound=GroupComparison)


@dataclass(frozen=True, kw_only=True)
class CellComparison(GroupComparison):
    """Two cells on the same kind of host.

    `unverified`: those of the two of which some run was to be verified and was not: its pass shows nothing.
    """

    other: str
    host_kind: str
    one: BinomialCount
    two: BinomialCount
    unverified: tuple[str, ...] = ()

    @property
    def pair(self) -> tuple[BinomialCount, BinomialCount]:
        """The counts of both cells."""
        return self.one, self.two

    @property
    def in_words(self) -> str:
        """The comparison as in `cpu-plain passed 20 of 20, cpu-strict 3 of 9 (...): they differ`."""
        counts = f"{self.cell} passed {self.one.passes} of {self.one.runs}"
        doubt = f"; not all runs of {listed(self.unverified)} were verified" if self.unverified else ""
        return f"{counts}, {self.other} {self.two.passes} of {self.two.runs} {self.conclusion}{doubt}"


def compare(verdicts: Iterable[Verdict], cell: str, others: Sequence[str]) -> list[CellComparison]:
    """Compare the cell with each of the others, wherever both have comparable runs that are not stale."""
    kept = [one for one in verdicts if not one.stale and one.runs]
    made = [
        _compared(one, two)
        for other in others
        for one in kept
        for two in kept
        if (one.cell, two.cell) == (cell, other) and _circumstances(one) == _circumstances(two)
    ]
    return corrected(made)


def _circumstances(one: Verdict) -> tuple[str, ...]:
    return one.workload_hash, one.host_kind, one.executor, one.scope


def _compared(verdict: Verdict, other: Verdict) -> CellComparison:
    one, two = BinomialCount(verdict.passes, verdict.runs), BinomialCount(other.passes, other.runs)
    p_value = fisher(one, two)
    return CellComparison(
        cell=verdict.cell,
        other=other.cell,
        workload=verdict.workload,
        workload_hash=verdict.workload_hash,
        data=verdict.data,
        host_kind=verdict.host_kind,
        executor=verdict.executor,
        scope=verdict.scope,
        one=one,
        two=two,
        unverified=tuple(side.cell for side in (verdict, other) if not (side.verified or side.own_program)),
        p_value=p_value,
        adjusted=p_value,
    )


def corrected(made: list[Tested]) -> list[Tested]:
    """Return comparisons with Holm's correction, and the pass rate that each could have told apart.

    The smallest p-value is multiplied by the number of comparisons, the next one by one less, and so on; an adjusted
    p-value is never below that before it.
    """
    highest = 0.0
    adjusted = {}
    for rank, one in enumerate(sorted(made, key=lambda one: one.p_value)):
        highest = max(highest, min(1.0, one.p_value * (len(made) - rank)))
        adjusted[one] = replace(one, adjusted=highest, told_apart=detectable_rate(*one.pair, len(made)))
    return [adjusted[one] for one in made]


def detectable_rate(one: BinomialCount, two: BinomialCount, comparisons: int = 1) -> float | None:
    """Return the highest pass rate that so many runs tell, with probability .8, from that of the better of the two.

    With several `comparisons` the strictest level of Holm's correction is assumed.
    """
    from scipy.stats import binom  # noqa: PLC0415

    better, worse = sorted((one, two), key=lambda c: c.passes / c.runs, reverse=True)
    rate = better.passes / better.runs
    # The other numbers of passes of the better one have no probability that matters, and there may be thousands.
    low, high = (int(passes) for passes in binom.ppf([RARE, 1 - RARE], better.runs, rate))

    def is_shown(worse_passes: int, passes: int) -> bool:
        return _is_lower(BinomialCount(worse_passes, worse.runs), BinomialCount(passes, better.runs), comparisons)

    # For each number of passes of the better one: the most passes of the worse one that the test still shows to be
    # lower.
    most = bisect_left(range(worse.runs + 1), True, key=lambda one: not is_shown(one, low)) - 1
    critical = []
    for passes in range(low, high + 1):
        while is_shown(most + 1, passes):
            most += 1
        critical.append(most)
    chances = binom.pmf(range(low, high + 1), better.runs, rate)
    for hundredths in range(99, -1, -1):
        if float(chances @ binom.cdf(critical, worse.runs, hundredths / 100)) >= POWER:
            return hundredths / 100
    return None


def _is_lower(worse: BinomialCount, better: BinomialCount, comparisons: int) -> bool:
    lower = worse.passes * better.runs < better.passes * worse.runs
    return lower and fisher(worse, better) * comparisons <= FAMILY_ERROR


def fisher(one: BinomialCount, two: BinomialCount) -> float:
    """Return the p-value of Fisher's exact test, two-sided."""
    # Import SciPy only where it is used, because the import takes a second.
    from scipy.stats import fisher_exact  # noqa: PLC0415

    return float(fisher_exact([[c.passes, c.runs - c.passes] for c in (one, two)]).pvalue)
