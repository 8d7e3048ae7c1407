"""What a campaign with a goal says in the end."""

from math import floor

import pytest

from harness.evidence.verdicts.rates import lower_bound
from harness.search.conclusion import Conclusion, conclude
from harness.search.goal import Goal
from harness.search.schedule import Candidate, EndReason, Tally, runs_to_show

A, B, C = (Candidate(f"cpu-{name}", "cpu", name, "cpu") for name in "abc")
FIND = Goal(rate=0.9, confidence=0.95, among=3)
SETTLE = Goal(rate=0.9, confidence=0.9, every=True, among=3)
ENOUGH = runs_to_show(0, 0.9, FIND.of_each)
NEVER_RUN = Tally()


def concluded(
    goal: Goal, why: EndReason, a: Tally, b: Tally = NEVER_RUN, c: Tally = NEVER_RUN, *, tags_at: float | None = 0.95
) -> Conclusion:
    return conclude(goal, why, {A: a, B: b, C: c}, {"cpu-b": 60.0}, tags_at=tags_at)


def test_what_was_found_is_said_with_its_runs_and_what_to_type() -> None:
    conclusion = concluded(FIND, "reached", Tally(1, 3), Tally(ENOUGH, ENOUGH))
    low = floor(lower_bound(ENOUGH, ENOUGH, FIND.of_each) * 1000) / 1000
    assert conclusion.reached
    assert conclusion.sentence == (
        f"cpu-b is known-good: {ENOUGH} of {ENOUGH} runs completed, so that its pass rate is above "
        f"{low:.3g} with 0.9833 confidence (0.95 for the best of 3 cells)."
    )
    assert conclusion.next_command == "matrix promote cpu-b"
    assert conclusion.standings["cpu-b"] == "known-good"


def test_what_earns_no_tag_is_trained_with_and_not_promoted() -> None:
    conclusion = concluded(FIND, "reached", Tally(ENOUGH, ENOUGH), tags_at=None)
    assert conclusion.next_command == "matrix train --cell cpu-a --data merged.csv --output TRAINING"


def test_what_is_shown_with_less_confidence_than_a_tag_takes_is_run_on() -> None:
    enough = runs_to_show(0, 0.9, SETTLE.confidence)
    conclusion = concluded(SETTLE, "reached", Tally(enough, enough), Tally(0, 5), Tally(0, 5))
    assert conclusion.next_command == "matrix run cpu-a --until known-good"


@pytest.mark.parametrize("more", range(12))
def test_a_bound_is_never_said_to_be_higher_than_it_is(more: int) -> None:
    conclusion = concluded(FIND, "reached", Tally(ENOUGH + more, ENOUGH + more))
    said = float(conclusion.sentence.split("is above ")[1].split(" ")[0])
    assert 0.9 <= said <= lower_bound(ENOUGH + more, ENOUGH + more, FIND.of_each)


def test_when_the_time_is_over_the_nearest_is_named_with_what_is_missing() -> None:
    conclusion = concluded(FIND, "out-of-time", Tally(0, 4, {"crash": 4}), Tally(20, 20))
    assert not conclusion.reached
    assert conclusion.sentence == (
        "The time is over and no cell is shown to be known-good yet: nearest is cpu-b (20 of 20 completed), "
        f"{ENOUGH - 20} more would do, about {ENOUGH - 20} min; dropped: cpu-a (0 of 4 completed); never run: cpu-c."
    )
    assert conclusion.next_command.startswith("the same command again")


def test_that_none_was_found_is_said() -> None:
    hopeless = Tally(0, 5)
    conclusion = concluded(FIND, "exhausted", hopeless, hopeless, hopeless)
    assert conclusion.sentence == (
        "No cell was found to be known-good: "
        "dropped: cpu-a (0 of 5 completed), cpu-b (0 of 5 completed), cpu-c (0 of 5 completed)."
    )
    assert conclusion.next_command == "matrix status cpu-a"


def test_nothing_having_run_at_all_is_the_hosts_matter() -> None:
    conclusion = concluded(FIND, "exhausted", Tally())
    assert "never run: cpu-a, cpu-b, cpu-c" in conclusion.sentence
    assert conclusion.next_command == "matrix doctor"


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
    assert conclusion.sentence.startswith(f"{words}, each with 0.9 confidence; above 0.9: cpu-a (40 of 40 completed)")
    assert "below 0.9: cpu-b (1 of 9 completed)" in conclusion.sentence
    assert ("still open: cpu-c (2 of 2 completed)" in conclusion.sentence) == (why == "out-of-time")
    assert ("too near that line to tell: cpu-c" in conclusion.sentence) == (why == "exhausted")
    assert conclusion.reached == (why == "reached")


def test_a_cell_of_two_scopes_is_named_with_them() -> None:
    one, other = (Candidate("r-plain", "r", "plain", scope) for scope in ("gfx1030", "gfx1100"))
    conclusion = conclude(FIND, "reached", {one: Tally(0, 4), other: Tally(ENOUGH, ENOUGH)}, {}, tags_at=0.95)
    assert conclusion.sentence.startswith("r-plain (gfx1100) is known-good")
    assert conclusion.standings == {"r-plain (gfx1030)": "hopeless", "r-plain (gfx1100)": "known-good"}
