from dataclasses import replace

import pytest

from harness.matrix.cells import MtbfHours, Verdicts
from harness.search.goal import Goal
from harness.search.reach import first_in_words, reach_in_words, seconds_to

THRESHOLDS = Verdicts()
ALONE = Goal(0.9, 0.95, mtbf_hours=3, boots=2)
HALF_HOURS = (2400.0, 0.5)


def test_what_known_good_takes_is_said_before_anything_was_run() -> None:
    assert reach_in_words(ALONE, THRESHOLDS, None, None) == (
        "known-good takes 33 starts and 10.3 hours of training without a failure, on 2 boots; "
        "the first runs show how long that takes"
    )
    assert "boots; 20 min cannot reach it; the first" in reach_in_words(
        replace(ALONE, budget=1200.0), THRESHOLDS, None, None
    )
    assert "cannot" not in reach_in_words(replace(ALONE, budget=40000.0), THRESHOLDS, None, None)
    many = reach_in_words(Goal(0.9, 0.95, among=40), THRESHOLDS, None, None)
    assert "69 starts and 21.9 hours" in many
    assert "(held to 0.9988, as the best of 40)" in many


@pytest.mark.parametrize(
    ("budget", "ends"),
    [
        (24 * 3600.0, "; 24.0 h can reach it, after a reboot in between"),
        (12 * 3600.0, "; 12.0 h can reach `good` at best"),
        (4 * 3600.0, "; 4.0 h can reach `candidate` at best"),
        (3600.0, "; 1.0 h can reach no verdict but `seen`"),
    ],
)
def test_a_budget_reaches_the_tier_that_fits_it(budget: float, ends: str) -> None:
    """A run takes 40 minutes, half an hour of them training; known-good takes 33 runs, good 16, a candidate 5."""
    goal = Goal(0.9, 0.95, mtbf_hours=3, boots=2, budget=budget)
    said = reach_in_words(goal, THRESHOLDS, *HALF_HOURS)
    assert said.endswith(ends)
    assert "about 22.0 h" in said


def test_the_number_of_runs_is_named_beside_the_starts_and_hours_that_they_bring() -> None:
    short = reach_in_words(ALONE, THRESHOLDS, 157.0, 2.6 / 60)
    assert "33 starts and 10.3 hours of training" in short
    assert "on 2 boots: 236 runs as long as those before, about 10.3 h" in short
    assumed = reach_in_words(ALONE, THRESHOLDS, *HALF_HOURS, assumed=True)
    assert "on 2 boots: 33 runs (assumed: 40 min each), about 22.0 h" in assumed


def test_a_single_start_and_run_are_not_plural() -> None:
    no_hours = MtbfHours(candidate=0, good=0, known_good=0)
    one = Verdicts(candidate=0.05, good=0.06, known_good=0.1, confidence=0.6, known_good_boots=1, mtbf_hours=no_hours)
    said = reach_in_words(Goal(0.1, 0.6), one, *HALF_HOURS)
    assert said.startswith("known-good takes 1 start without a failure: 1 run as long as those before, about 40 min")


def test_a_first_run_of_unknown_length_is_said_to_go_beyond_the_budget() -> None:
    short = replace(ALONE, budget=600.0)
    assert first_in_words(short, 7200.0) == (
        "; it is unknown how long the first run takes: it runs to its end, at most 2.0 h, also beyond 10 min"
    )
    assert first_in_words(short, 600.0) == ""
    assert first_in_words(ALONE, 7200.0) == ""


def test_short_runs_need_more_of_them_for_the_hours() -> None:
    assert seconds_to("known_good", ALONE, THRESHOLDS, 600.0, 0.1) == 600.0 * 103
    assert seconds_to("known_good", ALONE, THRESHOLDS, 600.0, 10.0) == 600.0 * 33
    assert seconds_to("known_good", ALONE, THRESHOLDS, 600.0, 0.0) == float("inf")
    none = Verdicts(mtbf_hours=MtbfHours(candidate=0, good=0, known_good=0))
    assert seconds_to("known_good", ALONE, none, 600.0, 0.0) == 600.0 * 33
    assert seconds_to("known_good", ALONE, none, 600.0, 0.0, lanes=2) == 600.0 * 17
