from dataclasses import replace

import pytest

from vpoc.evaluation.bootstrap import Interval
from vpoc.evaluation.placebo import Placebo
from vpoc.evaluation.verdict import Compared, decide, labels_to_tell

CHANCE = Placebo({"logistic": (Interval(0.02, 0.01, 0.03),)}, ())
LOSSES = {"constant": 0.69, "conditional": 0.68, "logistic": 0.67, "linear": 0.66, "network": 0.65}
SURE = dict.fromkeys(LOSSES.keys() - {"constant"}, 1e-6)


def compared(sessions=4000, better=1e-6, **p_values):
    return Compared(
        sessions=sessions,
        labels=float(sessions),
        run=1,
        log_loss=LOSSES,
        beats_chance={name: p_values.get(name, 0.5) for name in ("conditional", "logistic", "linear", "network")},
        network_better=dict.fromkeys(LOSSES.keys() - {"network"}, better),
    )


def test_the_simplest_that_beats_chance_is_named_and_the_network_beside_the_best():
    found = decide(compared(logistic=1e-6, linear=1e-6, network=1e-6), compared(126), CHANCE)
    assert (found.outcome, found.simplest, found.best, found.network_adds) == ("edge", "logistic", "linear", True)
    assert found.beat_chance == ("logistic", "linear", "network")
    first, second = found.answers
    assert first == (
        "Does anything beat chance? Yes; the simplest that does is the logistic regression on three features "
        "(`logistic`): log-loss 0.6700 against 0.6900 of the constant rate in 4,000 sessions out of sample, "
        "p = 0.0000, and 0.6700 against 0.6900 in 126 held out; so do the logistic regression on all features "
        "(`linear`), the network."
    )
    assert second == (
        "Does the network add to it? Yes: its log-loss is 0.6500 against 0.6600 of the logistic regression on all "
        "features (`linear`), p = 0.0000, held out 0.6500 against 0.6600."
    )


def test_a_network_that_is_not_surely_better_adds_nothing():
    found = decide(compared(better=0.02, linear=1e-6, network=1e-6), compared(126), CHANCE)
    assert (found.simplest, found.network_adds) == ("linear", False)
    assert "Does the network add to it? No: " in found.sentence


def test_what_only_the_network_finds_is_all_there_is():
    found = decide(compared(better=0.02, network=1e-6), compared(126), CHANCE)
    assert (found.simplest, found.beat_chance, found.network_adds) == ("network", ("network",), True)
    assert "nothing simpler beats chance" in found.sentence


@pytest.mark.parametrize("part", ["pooled", "held out"])
def test_a_worse_log_loss_is_no_edge_whatever_the_test_says(part):
    worse = replace(compared(**SURE), log_loss={**LOSSES, **dict.fromkeys(SURE, 0.70)})
    pooled, held_out = (worse, compared(126)) if part == "pooled" else (compared(**SURE), worse)
    found = decide(pooled, held_out, CHANCE)
    assert (found.outcome, found.simplest, found.network_adds) == ("no-edge", None, None)


def test_the_tests_of_all_models_are_held_to_one_percent_together():
    assert decide(compared(linear=0.0026), compared(126), CHANCE).outcome == "no-edge"
    assert decide(compared(linear=0.0024), compared(126), CHANCE).simplest == "linear"


def test_no_edge_is_said_only_where_one_would_have_been_found():
    needed = decide(compared(), compared(126), CHANCE).sessions_needed
    assert needed == pytest.approx(labels_to_tell(0.53, 0.5, 0.0025), abs=10)
    enough, few = (decide(compared(sessions), compared(126), CHANCE) for sessions in (needed, needed - 10))
    assert (enough.outcome, few.outcome) == ("no-edge", "not-enough-sessions")
    assert enough.answers[1] == "Does the network add to it? No: nothing beats chance."
    assert few.answers[1] == "Does the network add to it? Too few sessions to say."
    assert f"takes about {needed:,} sessions out of sample, there are {needed - 10:,}" in few.sentence
    # With twice as many independent labels in each session, half as many sessions are enough.
    rich = replace(compared(needed // 2 + 10), labels=float(needed + 20))
    assert decide(rich, compared(126), CHANCE).outcome == "no-edge"
    assert decide(replace(rich, sessions=50, run=6), compared(126), CHANCE).outcome == "not-enough-sessions"


def test_what_is_named_as_nearest_has_the_lowest_log_loss():
    worse = replace(compared(126, network=0.02, logistic=0.02), log_loss={**LOSSES, "network": 0.71})
    assert (
        "the nearest is the logistic regression on all features (`linear`)"
        in decide(worse, compared(126), CHANCE).sentence
    )
    none = replace(worse, log_loss={**LOSSES, **dict.fromkeys(SURE, 0.71), "conditional": 0.7})
    assert "the nearest is the rate by where the open sits" in decide(none, compared(126), CHANCE).sentence


def test_few_sessions_show_nothing_however_sure_they_look():
    sure = replace(compared(59, **SURE), run=6)
    assert decide(sure, compared(126), CHANCE).outcome == "not-enough-sessions"
    assert decide(replace(sure, sessions=60), compared(126), CHANCE).outcome == "edge"


def test_a_leak_is_louder_than_everything():
    better = (Interval(-0.02, -0.03, -0.01),) * 3
    found = decide(compared(**SURE), compared(126), Placebo({"network": better}, ("network",)))
    assert found.outcome == "invalid"
    assert found.sentence.startswith(
        "not valid: the network scored better than chance on shuffled labels, 3 times of 3"
    )


def test_labels_to_tell_53_from_50_percent():
    assert labels_to_tell(0.53, 0.50, 0.025) == pytest.approx(2180, abs=5)
