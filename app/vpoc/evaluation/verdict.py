"""The verdict on the scores, in a sentence: an edge, or none."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from vpoc.evaluation.bootstrap import FEWEST_RUNS, LEVEL, Interval
from vpoc.evaluation.placebo import Placebo

POWER = 0.8
MODEL_WORDS = {
    "constant": "the constant rate",
    "conditional": "the conditional rate",
    "logistic": "the logistic regression",
    "network": "the network",
}


@dataclass(frozen=True)
class Compared:
    """Log-loss out of sample: of the network, of each baseline, and the differences, below 0 where it is better.

    `run`: how many of the `sessions` were drawn together for the intervals.
    """

    sessions: int
    run: int
    network: float
    baselines: dict[str, float]
    differences: dict[str, Interval]


@dataclass(frozen=True)
class Verdict:
    """`outcome`: edge, no-edge or invalid. `best`: the baseline with the lowest log-loss in the pooled test blocks.

    `sessions_needed`: out of sample, to tell an accuracy of 53 % from 50 %; `sessions_for_this_difference`: for one
    of the size seen, None unless the network was better.
    """

    outcome: str
    best: str
    sentence: str
    sessions_needed: int
    sessions_for_this_difference: int | None


def decide(pooled: Compared, held_out: Compared, placebo: Placebo) -> Verdict:
    """An edge: the interval of the gain over the best baseline excludes 0, and the held-out end has the same sign."""
    best = min(pooled.baselines, key=lambda name: pooled.baselines[name])
    seen, later = pooled.differences[best], held_out.differences[best]
    facts = (
        f"the network's log-loss is {pooled.network:.4f} against {pooled.baselines[best]:.4f} of {MODEL_WORDS[best]} "
        f"(difference {difference_text(seen)}; {pooled.sessions} sessions out of sample)"
    )
    end = f"in the {held_out.sessions} sessions held out the difference is {difference_text(later)}"
    needed = sessions_to_tell(0.53, 0.50)
    this = _sessions_for(seen, pooled.sessions)
    to_tell = f"to tell an accuracy of 53 % from 50 % takes about {needed:,} sessions"
    fewest = FEWEST_RUNS * pooled.run
    outcome = "no-edge"
    if placebo.alarms:
        outcome, sentence = "invalid", _leak(placebo)
    elif pooled.sessions < fewest:
        sentence = f"no edge: {facts}. Fewer than {fewest} sessions cannot show one; {to_tell}."
    elif seen.high < 0 and later.value < 0:
        outcome, sentence = "edge", f"edge: {facts}; {end}."
    elif seen.high < 0:
        sentence = f"no edge: {facts}, but {end}."
    elif seen.low > 0:
        sentence = f"no edge: {facts}, so that the network is worse."
    else:
        more = f", a difference such as this one about {this:,}" if this else ""
        sentence = f"no edge: {facts}. {to_tell[0].upper()}{to_tell[1:]}{more}."
    return Verdict(outcome, best, sentence, needed, this)


def _leak(placebo: Placebo) -> str:
    who = " and ".join(MODEL_WORDS[name] for name in placebo.alarms)
    times = len(placebo.gains[placebo.alarms[0]])
    return (
        f"not valid: {who} scored better than chance on shuffled labels, {times} times of {times}; answers leak into "
        "the training, and no number of this evaluation says anything."
    )


def difference_text(interval: Interval) -> str:
    """A difference with its interval, in words."""
    return f"{interval.value:+.4f}, 95 % interval {interval.low:+.4f} to {interval.high:+.4f}"


def sessions_to_tell(rate: float, other: float) -> int:
    """Independent sessions to tell two accuracies apart: 80 % power, 5 % two-sided, rounded to ten."""
    return round((_reach() / (rate - other)) ** 2 * other * (1 - other) / 10) * 10


def _sessions_for(seen: Interval, sessions: int) -> int | None:
    if seen.value >= 0:
        return None
    error = (seen.high - seen.low) / 2 / NormalDist().inv_cdf((1 + LEVEL) / 2)
    return math.ceil(sessions * (_reach() * error / seen.value) ** 2)


def _reach() -> float:
    """How many standard errors a difference must have to be found with 80 % power."""
    normal = NormalDist()
    return normal.inv_cdf((1 + LEVEL) / 2) + normal.inv_cdf(POWER)
