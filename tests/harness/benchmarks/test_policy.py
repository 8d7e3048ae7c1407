"""The simulation of what is run next, made small."""

import random
from dataclasses import replace

import pytest

from benchmarks.policy import (
    BUDGET_SECONDS,
    CELLS,
    FIND,
    MIXTURES,
    RUN_SECONDS,
    SETTLE,
    Simulated,
    alone,
    broken_stacks,
    many,
    shuffled,
    simulate,
    wrong_claims,
)
from harness.evidence.verdicts.rates import runs_to_show


def test_a_search_among_cells_that_always_pass_takes_no_more_runs_than_the_bound_does() -> None:
    found = simulate(shuffled((1.0,) * CELLS, random.Random(1)), FIND, 1)
    assert (found.why, found.found, found.wrong) == ("reached", True, False)
    assert found.runs == runs_to_show(0, FIND.rate, FIND.of_each)


def test_a_rate_at_the_line_that_is_called_known_good_is_wrong() -> None:
    assert Simulated(1, "reached", {"known-good": (0.9,)}).wrong
    assert not Simulated(1, "reached", {"known-good": (0.91,), "open": (0.5,)}).wrong
    claims = Simulated(1, "reached", {"known-good": (0.5, 0.99), "ruled-out": (0.95, 0.5), "hopeless": (0.99,)})
    assert sorted(wrong_claims(claims)) == [0.5, 0.95]


def test_few_runs_are_spent_on_stacks_without_code_for_the_gpu() -> None:
    world = broken_stacks(random.Random(3))
    assert sorted(set(world.rates.values())) == [0.0, 0.5, 0.99]
    found = simulate(world, FIND, 3)
    assert found.found
    assert found.runs < 300


@pytest.mark.slow
def test_one_is_found_in_less_than_half_of_a_fixed_number_of_runs() -> None:
    mixture = next(iter(MIXTURES.values()))
    made = [many(mixture, FIND, seed) for seed in range(6)]
    assert all(one.found and not one.wrong for one in made)
    assert sorted(one.runs for one in made)[3] < 29 * CELLS / 2


def test_no_run_is_begun_that_does_not_fit() -> None:
    world = shuffled((0.95,) * CELLS, random.Random(1))
    made = simulate(world, replace(SETTLE, budget=BUDGET_SECONDS), 1)
    assert made.why == "out-of-time"
    assert BUDGET_SECONDS - RUN_SECONDS <= made.runs * RUN_SECONDS <= BUDGET_SECONDS


def test_one_cell_is_settled_as_what_it_is() -> None:
    assert many(lambda chance: alone(0.5, chance), SETTLE, 1).stood == {"ruled-out": (0.5,)}
    assert many(lambda chance: alone(1.0, chance), SETTLE, 1).stood == {"known-good": (1.0,)}
