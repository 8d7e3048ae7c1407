"""Tests of the conclusion of a campaign with a goal."""

from dataclasses import replace
from math import floor

import pytest

from harness.evidence.verdicts.rates import lower_bound, runs_to_show
from harness.evidence.verdicts.recommend import NamedCell
from harness.evidence.verdicts.totals import Life, Totals
from harness.search.conclusion import Conclusion, conclude
from harness.search.goal import Goal
from harness.search.schedule import Candidate, EndReason, Tally

A, B, C = (Candidate(f"cpu-{name}", "cpu", name, "cpu") for name in "abc")
FIND = Goal(rate=0.9, confidence=0.95, among=3)
SETTLE = Goal(rate=0.9, confidence=0.9, every=True, among=3)
ENOUGH = runs_to_show(0, 0.9, FIND.of_each)
NEVER_RUN = Tally()


def concluded(goal: Goal, why: EndReason, a: Tally, b: Tally = NEVER_RUN, c: Tally = NEVER_RUN) -> Conclusion:
    return conclude(goal, why, {A: a, B: b, C: c}, {"cpu-b": 60.0})


def test_what_was_found_is_said_with_its_runs() -> None:
    conclusion = concluded(FIND, "reached", Tally(1, 3), Tally(ENOUGH, ENOUGH))
    low = floor(lower_bound(ENOUGH, ENOUGH, FIND.of_each) * 1000) / 1000
    assert conclusion.reached
    assert conclusion.sentence == (
        f"cpu-b is known-good: {ENOUGH} of {ENOUGH} runs passed, so that the share of its starts that succeed is above "
        f"{low:.3g} with 0.9833 confidence (0.95 for the best of 3 cells)."
    )
    assert not conclusion.continues
    assert conclusion.standings["cpu-b"] == "known-good"


def test_one_with_more_runs_that_lacks_a_boot_is_not_said_to_be_known_good() -> None:
    goal, hours = replace(FIND, mtbf_hours=3.0, boots=2), (Life(1.0),)
    more = Totals(started=90, starts=90, lives=90 * hours, boots=1)
    enough = Totals(started=60, starts=60, lives=60 * hours, boots=2)
    conclusion = concluded(goal, "reached", Tally(90, 90, totals=more), Tally(60, 60, totals=enough))
    assert conclusion.standings == {"cpu-a": "another-boot", "cpu-b": "known-good", "cpu-c": "open"}
    assert conclusion.sentence.startswith("cpu-b is known-good: 60 of 60 starts, 60.0 h of training")
    assert conclusion.named == NamedCell("cpu-b", "single")


def test_what_was_dropped_does_not_hide_the_nearest() -> None:
    goal, failed = replace(FIND, mtbf_hours=3.0), 30 * (Life(0.1, failed=True),)
    frail = Totals(started=60, starts=60, failures=30, lives=failed, boots=1)
    few = Totals(started=10, starts=10, lives=10 * (Life(1.0),), boots=1)
    conclusion = concluded(goal, "out-of-time", Tally(30, 60, totals=frail), Tally(10, 10, totals=few))
    assert conclusion.standings == {"cpu-a": "hopeless", "cpu-b": "open", "cpu-c": "open"}
    assert "nearest is cpu-b (10 of 10 passed)" in conclusion.sentence
    assert conclusion.named == NamedCell("cpu-b", "single")


def test_a_budget_is_not_called_too_small_once_the_goal_is_reached() -> None:
    goal = replace(FIND, budget=30.0)
    conclusion = concluded(goal, "reached", Tally(ENOUGH, ENOUGH), Tally(1, 1))
    assert conclusion.least_budget is None
    assert "No run fits" not in conclusion.sentence


@pytest.mark.parametrize("more", range(12))
def test_a_bound_is_never_said_to_be_higher_than_it_is(more: int) -> None:
    conclusion = concluded(FIND, "reached", Tally(ENOUGH + more, ENOUGH + more))
    said = float(conclusion.sentence.split("is above ")[1].split(" ")[0])
    assert 0.9 <= said <= lower_bound(ENOUGH + more, ENOUGH + more, FIND.of_each)


def test_when_the_time_is_over_the_nearest_is_named_with_what_is_missing() -> None:
    conclusion = concluded(FIND, "out-of-time", Tally(0, 4, {"crash": 4}), Tally(20, 20))
    assert not conclusion.reached
    assert conclusion.sentence == (
        "The time is over and no cell is shown to be known-good yet: nearest is cpu-b (20 of 20 passed), "
        f"{ENOUGH - 20} more would do, about {ENOUGH - 20} min; dropped: cpu-a (0 of 4 passed); never run: cpu-c."
    )
    assert conclusion.continues


def test_where_nothing_ran_because_nothing_fits_no_time_is_said_to_be_over() -> None:
    goal, cell = replace(FIND, budget=60.0), Candidate("r-plain", "r", "plain", "gfx1100")
    fits = "No run fits into the budget: the {} one needs 11m (`--budget`, with make `BUDGET=`)."
    nothing = conclude(goal, "out-of-time", {cell: Tally()}, {cell.cell: 600.0})
    assert nothing.sentence == fits.format("first")
    some = conclude(goal, "out-of-time", {cell: Tally(1, 1)}, {cell.cell: 600.0})
    assert some.sentence.startswith("The time is over and no cell is shown to be known-good yet: nearest is r-plain")
    assert some.sentence.endswith(f". {fits.format('next')}")


def test_more_runs_are_not_offered_where_those_that_passed_were_not_verified() -> None:
    sentence = concluded(FIND, "exhausted", Tally(3, 3, totals=Totals()), Tally(0, 5), Tally(0, 5)).sentence
    assert sentence == (
        "No cell was found to be known-good: not verified, so nothing is shown "
        "(`matrix status CELL` says why): cpu-a (3 of 3 passed); dropped: cpu-b (0 of 5 passed), cpu-c (0 of 5 passed)."
    )


def test_that_none_was_found_is_said() -> None:
    hopeless = Tally(0, 5)
    conclusion = concluded(FIND, "exhausted", hopeless, hopeless, hopeless)
    assert conclusion.sentence == (
        "No cell was found to be known-good: "
        "dropped: cpu-a (0 of 5 passed), cpu-b (0 of 5 passed), cpu-c (0 of 5 passed)."
    )
    assert not conclusion.continues


def test_nothing_having_run_at_all_is_the_hosts_matter() -> None:
    conclusion = concluded(FIND, "exhausted", Tally())
    assert "never run: cpu-a, cpu-b, cpu-c" in conclusion.sentence


@pytest.mark.parametrize(
    ("why", "c", "words"),
    [
        ("reached", Tally(26, 26), "3 of 3 cells are settled"),
        ("out-of-time", Tally(2, 2), "The time is over: 2 of 3 cells are settled"),
        ("exhausted", Tally(9000, 10_000), "2 of 3 cells are settled"),
    ],
)
def test_all_cells_are_told_apart(why: EndReason, c: Tally, words: str) -> None:
    conclusion = concluded(SETTLE, why, Tally(40, 40), Tally(1, 9), c)
    assert conclusion.sentence.startswith(f"{words}, each with 0.9 confidence; above 0.9: cpu-a (40 of 40 passed)")
    assert "below 0.9: cpu-b (1 of 9 passed)" in conclusion.sentence
    assert ("still open: cpu-c (2 of 2 passed)" in conclusion.sentence) == (why == "out-of-time")
    assert ("too near that line to tell: cpu-c" in conclusion.sentence) == (why == "exhausted")
    assert conclusion.reached == (why == "reached")


def test_a_cell_of_two_scopes_is_named_with_them() -> None:
    one, other = (Candidate("r-plain", "r", "plain", scope) for scope in ("gfx1030", "gfx1100"))
    conclusion = conclude(FIND, "reached", {one: Tally(0, 4), other: Tally(ENOUGH, ENOUGH)}, {})
    assert conclusion.sentence.startswith("r-plain (gfx1100) is known-good")
    assert conclusion.standings == {"r-plain (gfx1030)": "hopeless", "r-plain (gfx1100)": "known-good"}


HOURS = Goal(rate=0.5, confidence=0.95, mtbf_hours=3.0, boots=2)
LASTING = Totals(40, 40, 0, (Life(20.0),), boots=2)


def test_what_lasts_is_said_with_its_hours() -> None:
    found = concluded(HOURS, "reached", Tally(40, 40, totals=LASTING))
    assert found.sentence.startswith(
        "cpu-a is known-good: 40 of 40 starts, 20.0 h of training, no failure, 2 boots, so that"
    )
    assert "and its mean time between failures above 5.8 h with 0.95 confidence" in found.sentence


def test_what_lacks_another_boot_asks_for_one() -> None:
    once = replace(LASTING, boots=1)
    found = concluded(HOURS, "another-boot", Tally(40, 40, totals=once))
    assert not found.reached
    assert (
        "another boot is missing for cpu-a (40 of 40 starts, 20.0 h of training, no failure, 1 boot)" in found.sentence
    )
    assert found.continues


def test_what_lacks_hours_says_how_many() -> None:
    few = Totals(40, 40, 0, (Life(5.0),), boots=2)
    found = concluded(HOURS, "out-of-time", Tally(40, 40, totals=few))
    assert (
        "nearest is cpu-a (40 of 40 passed), 2 more runs of that length would do (5.3 more hours of training)"
        in found.sentence
    )
