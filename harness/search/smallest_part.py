"""Finds the smallest contiguous part of a row of chunks that still fails. The caller makes the runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.search.belief import Belief
from harness.search.least_failing import MOST_ERROR, NEVER_AGAIN, BudgetSpentError, least_failing, mean_rate

PartOutcome = Literal["found", "not-localised", "not-seen-again", "not-enough-runs"]
Part = tuple[int, int]
"""A range of chunks: the first chunk, and the one after the last."""

# The highest probability that the runs of the chunks after the part are judged wrongly.
REST_ERROR = 0.05
# Prior probability that the failing part is as small as possible, given that one part fails: the usual case.
SMALLEST = 0.9
# Prior weight that any part fails, so that the data are not the cause. It is added to all others, which sum to 1.
ANYWHERE = 0.2


@dataclass(frozen=True)
class SmallestPart:
    """The result of a search.

    Attributes:
        part: the smallest part that fails; None if none was found.
        rest_too: whether the chunks after the part fail as well; None if that was not seen, or there are none.
        rate: the failure rate of runs that include the part, as far as the runs tell.
    """

    conclusion: PartOutcome
    part: Part | None
    runs: int
    rest_too: bool | None
    rate: float | None


def smallest_part(
    chunks: int,
    run: Callable[[Part], bool],
    max_runs: int,
    fewest: int = 1,
    notify: Callable[[str], None] = lambda _: None,
) -> SmallestPart:
    """Find the smallest part, of at least `fewest` chunks, that fails as all of them do.

    `run` makes one run of a part and returns whether it passed. The parts that it is called with follow only from its
    answers, so that a search continues where it was interrupted when given the same answers again.

    The search assumes that everything that includes a failing part fails at the same rate. The shortest beginning that
    fails ends where the part ends. The last `fewest` chunks of it are tried alone as soon as that tells more. If they
    do not fail, the search looks for the latest start: of two chunks that only fail together, both ends are found. Runs
    of the chunks after the part tell whether those fail, too. Each answer is wrong with a probability of at most
    MOST_ERROR, as far as the assumption holds.

    Raises:
        ValueError: when there are fewer chunks than `fewest`.
    """
    if not 1 <= fewest <= chunks:
        raise ValueError(f"parts of at least {fewest} of {chunks} chunks")
    search = _Search(chunks, run, max_runs, fewest, notify)
    try:
        return search.carry_out()
    except BudgetSpentError:
        return search.summary("found" if search.certain else "not-enough-runs")


class _Search:
    def __init__(
        self, chunks: int, run: Callable[[Part], bool], max_runs: int, fewest: int, notify: Callable[[str], None]
    ) -> None:
        self._chunks, self._run, self._max_runs, self._fewest, self._notify = chunks, run, max_runs, fewest, notify
        self._made = 0
        self._part: Part | None = None
        self._rates: tuple[float, ...] | None = None
        self._rest_too: bool | None = None
        self.certain = False

    def carry_out(self) -> SmallestPart:
        """Run the search; raises BudgetSpentError when more runs are needed than are allowed."""
        part = self._find()
        if part is None:
            return self.summary("not-seen-again")
        self._part, self.certain = part, True
        self._look_at_the_rest(part)
        return self.summary("not-localised" if self._rest_too and part == (0, self._fewest) else "found")

    def summary(self, conclusion: PartOutcome) -> SmallestPart:
        """Return the result of the search so far."""
        return SmallestPart(
            conclusion=conclusion,
            part=self._part,
            runs=self._made,
            rest_too=self._rest_too,
            rate=None if self._rates is None else mean_rate(self._rates),
        )

    def _find(self) -> Part | None:
        """Return the part; None if nothing fails any more."""
        fewest, places = self._fewest, self._chunks - self._fewest + 1
        self._notify(f"looking for the part of {self._chunks} chunks that fails")
        of_kind = ((1 - NEVER_AGAIN) * SMALLEST, (1 - NEVER_AGAIN) * (1 - SMALLEST))
        weights = [kind / places for kind in of_kind for _ in range(places)] + [NEVER_AGAIN]
        # The shortest beginning cannot be shortened, so its place stands for the hypothesis that any part fails.
        anywhere = places
        weights[anywhere] = ANYWHERE
        belief = Belief(weights, kinds=2)
        while (known := belief.probabilities).max() < 1 - MOST_ERROR:
            place, gain = belief.best_place()
            likely = int(known[:places].argmax())
            if belief.gain_of([likely, anywhere]) > gain:
                belief.learn([likely, anywhere], passed=self._passed((likely, likely + fewest)))
            else:
                belief.learn(belief.up_to(place), passed=self._passed((0, place + fewest)))
        found = int(known.argmax())
        if found == 2 * places:
            return None
        kind, place = divmod(found, places)
        end, self._rates = place + fewest, belief.rates_of(found)
        if kind == 0 or found == anywhere:
            return place, end
        self._part = (0, end)
        self._notify(f"it ends with chunk {end}, which does not fail alone; looking for its start")
        start = least_failing(
            place, lambda level: None if self._passed((place - level - 1, end)) else level, rates=self._rates
        )
        if start.level is None:
            return None
        self._rates = start.rates
        return place - start.level - 1, end

    def _look_at_the_rest(self, part: Part) -> None:
        _, end = part
        if self._chunks - end < self._fewest:
            return
        self._notify("checking whether what comes after it fails, too")
        assert self._rates is not None
        rest = (end, self._chunks)
        found = least_failing(1, lambda _: None if self._passed(rest) else 0, REST_ERROR, self._rates, [0.5, 0.5])
        self._rest_too = found.level == 0

    def _passed(self, part: Part) -> bool:
        if self._made >= self._max_runs:
            raise BudgetSpentError
        passed = self._run(part)
        self._made += 1
        return passed
