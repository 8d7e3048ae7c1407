import pytest

from vpoc.evaluation.bootstrap import Interval
from vpoc.evaluation.placebo import Placebo
from vpoc.evaluation.verdict import Compared, decide, sessions_to_tell

WORSE, BETTER = Interval(0.02, 0.01, 0.03), Interval(-0.02, -0.03, -0.01)
UNSURE = Interval(-0.0003, -0.0016, 0.0010)
CHANCE = Placebo({"logistic": (WORSE,), "network": (WORSE,)}, ())


def compared(best, *, others=BETTER, sessions=244, run=6, value=0.6925):
    return Compared(
        sessions,
        run,
        value,
        {"constant": 0.70, "conditional": 0.6928, "logistic": 0.71},
        {"constant": others, "conditional": best, "logistic": others},
    )


def test_no_edge_is_said_plainly():
    found = decide(compared(UNSURE), compared(BETTER, sessions=126), CHANCE)
    assert (found.outcome, found.best, found.sessions_needed) == ("no-edge", "conditional", 2180)
    assert found.sentence == (
        "no edge: the network's log-loss is 0.6925 against 0.6928 of the conditional rate (difference -0.0003, 95 % "
        "interval -0.0016 to +0.0010; 244 sessions out of sample). To tell an accuracy of 53 % from 50 % takes about "
        f"2,180 sessions, a difference such as this one about {found.sessions_for_this_difference:,}."
    )
    error = 0.0013 / 1.959964
    assert found.sessions_for_this_difference == pytest.approx(244 * (2.801585 * error / 0.0003) ** 2, abs=1)


def test_an_edge_needs_the_best_baseline_beaten_and_the_same_sign_held_out():
    found = decide(compared(BETTER), compared(UNSURE, sessions=126), CHANCE)
    assert found.outcome == "edge"
    assert found.sentence.startswith("edge: the network's log-loss is 0.6925 against 0.6928 of the conditional rate")
    assert found.sentence.endswith(
        "; in the 126 sessions held out the difference is -0.0003, 95 % interval -0.0016 to +0.0010."
    )


def test_an_edge_that_is_gone_held_out_is_none():
    found = decide(compared(BETTER), compared(WORSE, sessions=126), CHANCE)
    assert found.outcome == "no-edge"
    assert "out of sample), but in the 126 sessions held out the difference is +0.0200" in found.sentence


def test_a_network_that_is_worse_is_said_to_be():
    found = decide(compared(WORSE), compared(BETTER), CHANCE)
    assert found.outcome == "no-edge"
    assert found.sentence.endswith("244 sessions out of sample), so that the network is worse.")
    assert found.sessions_for_this_difference is None


def test_few_sessions_show_nothing():
    found = decide(compared(BETTER, sessions=59), compared(BETTER), CHANCE)
    assert found.outcome == "no-edge"
    assert "Fewer than 60 sessions cannot show one" in found.sentence
    assert decide(compared(BETTER, sessions=60), compared(BETTER), CHANCE).outcome == "edge"


def test_a_leak_is_louder_than_everything():
    leak = Placebo({"logistic": (BETTER,) * 3, "network": (BETTER,) * 3}, ("network",))
    found = decide(compared(BETTER), compared(BETTER), leak)
    assert found.outcome == "invalid"
    assert found.sentence.startswith(
        "not valid: the network scored better than chance on shuffled labels, 3 times of 3"
    )


def test_sessions_to_tell_53_from_50_percent():
    assert sessions_to_tell(0.53, 0.50) == 2180
    assert sessions_to_tell(0.60, 0.50) == pytest.approx(196, abs=6)
