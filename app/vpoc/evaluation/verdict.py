"""The answers to two questions: does anything beat chance, and does the network add to the simplest model that does."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from vpoc.evaluation.bootstrap import FEWEST_RUNS
from vpoc.evaluation.forecast_tests import ALPHA, rejected
from vpoc.evaluation.placebo import Placebo

POWER = 0.8
EDGE_RATE, NO_EDGE_RATE = 0.53, 0.50
"""Accuracies that the sessions must be able to tell apart before the verdict is that there is no edge."""
NETWORK = "network"
CONSTANT = "constant"
MODEL_WORDS = {
    "constant": "the constant rate",
    "conditional": "the rate by where the open sits",
    "logistic": "the logistic regression on three features (`logistic`)",
    "linear": "the logistic regression on all features (`linear`)",
    "network": "the network",
}
"""Names of the models in sentences, in the order of simplicity."""


@dataclass(frozen=True)
class Compared:
    """Out-of-sample results.

    `labels`: the number of independent labels, which is the sum of the weights.
    `run`: how many of the `sessions` share labels.
    `log_loss`: by model, in the order of simplicity.
    `beats_chance`: p-values by model, without the constant rate.
    `network_better`: p-values by model, without the network.
    """

    sessions: int
    labels: float
    run: int
    log_loss: Mapping[str, float]
    beats_chance: Mapping[str, float]
    network_better: Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """The verdict of an evaluation.

    `outcome`: edge, no-edge, not-enough-sessions or invalid.
    `answers`: one sentence for each of the two questions.
    `simplest`: the simplest model that beats chance; `beat_chance`: all that do.
    `best`: the model that the network is compared with.
    `network_adds`: None if nothing beats chance.
    `sessions_needed`: the out-of-sample sessions needed to find an accuracy of 53 % where chance has 50 %.
    """

    outcome: str
    answers: tuple[str, ...]
    simplest: str | None
    beat_chance: tuple[str, ...]
    best: str
    network_adds: bool | None
    sessions_needed: int

    @property
    def sentence(self) -> str:
        """All answers as one text."""
        return " ".join(self.answers)


def decide(pooled: Compared, held_out: Compared, placebo: Placebo) -> Verdict:
    """Return which models beat chance.

    A model does when its log-loss is below that of the constant rate both in the test blocks and in the held-out rows,
    and its test rejects chance; the tests of all models together have a level of 1 %. A further test at 1 % asks
    whether the network's log-loss is below that of the best simpler model.
    """
    some = pooled.sessions >= FEWEST_RUNS * pooled.run
    found = tuple(name for name in rejected(pooled.beats_chance) if some and _better(pooled, held_out, name, CONSTANT))
    simpler = [name for name in found if name != NETWORK] or [name for name in pooled.log_loss if name != NETWORK]
    best = min(simpler, key=lambda name: pooled.log_loss[name])
    needed = _sessions_needed(pooled, len(pooled.beats_chance))
    if placebo.alarms:
        return Verdict("invalid", (_leak(placebo),), None, (), best, None, needed)
    if not found:
        few = not some or pooled.sessions < needed
        outcome = "not-enough-sessions" if few else "no-edge"
        addition = "Does the network add to it? " + ("Too few sessions to say." if few else "No: nothing beats chance.")
        answers = _nothing(pooled, needed, few=few), addition
        return Verdict(outcome, answers, None, (), best, None, needed)
    alone = found == (NETWORK,)
    adds = alone or (
        NETWORK in found and pooled.network_better[best] <= ALPHA and _better(pooled, held_out, NETWORK, best)
    )
    answers = _something(pooled, held_out, found), _addition(pooled, held_out, best, adds=adds, alone=alone)
    return Verdict("edge", answers, found[0], found, best, adds, needed)


def _better(pooled: Compared, held_out: Compared, name: str, other: str) -> bool:
    return all(part.log_loss[name] < part.log_loss[other] for part in (pooled, held_out))


def _nothing(pooled: Compared, needed: int, *, few: bool) -> str:
    # Choose by the log-losses in the table, because a p-value says how certain a difference is, not how large.
    least = min(pooled.beats_chance, key=lambda name: pooled.log_loss[name])
    facts = (
        f"the nearest is {MODEL_WORDS[least]}, log-loss {pooled.log_loss[least]:.4f} against "
        f"{pooled.log_loss[CONSTANT]:.4f} of the constant rate, p = {_p(pooled.beats_chance[least])}"
    )
    if few:
        return (
            f"Does anything beat chance? Not enough sessions to say: {facts}; to find an accuracy of 53 % where chance "
            f"has 50 % takes about {needed:,} sessions out of sample, there are {pooled.sessions:,}."
        )
    return (
        f"Does anything beat chance? No edge: {facts}; an accuracy of 53 % where chance has 50 % would have been found "
        f"in {pooled.sessions:,} sessions out of sample four times of five."
    )


def _something(pooled: Compared, held_out: Compared, found: tuple[str, ...]) -> str:
    simplest = found[0]
    more = [MODEL_WORDS[name] for name in found[1:]]
    return (
        f"Does anything beat chance? Yes; the simplest that does is {MODEL_WORDS[simplest]}: log-loss "
        f"{pooled.log_loss[simplest]:.4f} against {pooled.log_loss[CONSTANT]:.4f} of the constant rate in "
        f"{pooled.sessions:,} sessions out of sample, p = {_p(pooled.beats_chance[simplest])}, and "
        f"{held_out.log_loss[simplest]:.4f} against {held_out.log_loss[CONSTANT]:.4f} in {held_out.sessions:,} held "
        f"out{'; so ' + ('do ' if len(more) > 1 else 'does ') + ', '.join(more) if more else ''}."
    )


def _addition(pooled: Compared, held_out: Compared, best: str, *, adds: bool, alone: bool) -> str:
    facts = (
        f"its log-loss is {pooled.log_loss[NETWORK]:.4f} against {pooled.log_loss[best]:.4f} of {MODEL_WORDS[best]}, "
        f"p = {_p(pooled.network_better[best])}, held out {held_out.log_loss[NETWORK]:.4f} against "
        f"{held_out.log_loss[best]:.4f}"
    )
    if alone:
        return f"Does the network add to it? It is all there is: nothing simpler beats chance; {facts}."
    return f"Does the network add to it? {'Yes' if adds else 'No'}: {facts}."


def _leak(placebo: Placebo) -> str:
    who = " and ".join(MODEL_WORDS[name] for name in placebo.alarms)
    times = len(placebo.gains[placebo.alarms[0]])
    return (
        f"not valid: {who} scored better than chance on shuffled labels, {times} times of {times}; answers leak into "
        "the training, and no number of this evaluation says anything."
    )


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.00005 else "0.0000"


def _sessions_needed(pooled: Compared, tests: int) -> int:
    """Return how many sessions hold enough independent labels, rounded up to ten."""
    labels = labels_to_tell(EDGE_RATE, NO_EDGE_RATE, ALPHA / max(tests, 1))
    return -(-int(labels * pooled.sessions / pooled.labels) // 10) * 10


def labels_to_tell(rate: float, other: float, alpha: float) -> float:
    """Return how many independent labels a one-sided test at `alpha` needs to tell two accuracies apart.

    The power of the test is 80 %.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1 - alpha) + normal.inv_cdf(POWER)
    return (reach / (rate - other)) ** 2 * other * (1 - other)
