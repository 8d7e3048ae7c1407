from math import exp, inf
from random import Random

import pytest

from harness.evidence.verdicts.expectation import expectation, expected_hours


def simulated(hours: float, rate: float, checkpoint: float, restart: float, chance: Random) -> tuple[float, int]:
    """Return the hours and restarts of a simulated training, which repeats the piece after a checkpoint if it fails."""
    took, restarts = 0.0, 0
    pieces, rest = divmod(hours, checkpoint)
    for piece in [checkpoint] * round(pieces) + ([rest] if rest > 1e-9 else []):
        while (fails_after := chance.expovariate(rate)) < piece:
            took += fails_after + restart
            restarts += 1
        took += piece
    return took, restarts


@pytest.mark.slow
@pytest.mark.parametrize("mtbf", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("checkpoint", [1 / 12, 0.5])
def test_a_training_takes_as_long_as_simulated_ones(mtbf: float, checkpoint: float) -> None:
    chance, restart, trainings = Random(3), 2 / 60, 400
    made = [simulated(10, 1 / mtbf, checkpoint, restart, chance) for _ in range(trainings)]
    told = expectation(10, 1 / mtbf, 1 / mtbf, 10, checkpoint * 3600, restart * 3600)
    assert sum(took for took, _ in made) / trainings == pytest.approx(told.takes, rel=0.05)
    assert sum(restarts for _, restarts in made) / trainings == pytest.approx(told.restarts, rel=0.08)
    uninterrupted = sum(not restarts for _, restarts in made) / trainings
    assert uninterrupted == pytest.approx(told.uninterrupted, abs=0.06)


def test_ten_hours_at_a_failure_every_six_minutes_take_twice_as_long() -> None:
    """Checkpoints are five minutes apart and restarts take two; a linear estimate would give 17.5 h."""
    assert expected_hours(10, 10, 300, 120) == pytest.approx(20.8, abs=0.1)
    assert expected_hours(10, 1 / 3.5, 300, 120) == pytest.approx(10 + 13 / 60, abs=0.01)


def test_without_failures_it_takes_its_time_and_without_hours_nothing_is_known() -> None:
    assert expected_hours(10, 0) == 10
    told = expectation(10, 0, 0, 20)
    assert (told.uninterrupted, told.restarts, told.takes, told.within) == (1, 0, 10, True)
    nothing = expectation(10, inf, inf, 0)
    assert (nothing.uninterrupted, nothing.restarts, nothing.takes) == (0, inf, inf)
    assert nothing.in_words == "nothing can be said about 10 h: no training was seen yet"


def test_bursts_spoil_one_chance_and_cost_each_its_restart() -> None:
    told = expectation(2, 2.5, 0.5, 10)
    assert told.uninterrupted == pytest.approx(exp(-1))
    assert told.restarts == pytest.approx(5.1, abs=0.1)


def test_it_is_said_in_a_sentence_with_the_length_that_it_rests_on() -> None:
    within = expectation(10, 1 / 3.5, 1 / 3.5, 12).in_words
    assert within.startswith("10 h of training end uninterrupted with a chance above 5 %, take fewer than 2.9 restarts")
    assert "longer than" not in within
    assert expectation(10, 1 / 3.5, 1 / 3.5, 1).in_words.endswith("that is longer than these runs, and may be worse")


def test_bounds_are_rounded_up() -> None:
    said = expectation(0.5, 0.085, 0.085, 12).in_words
    assert said.endswith("take fewer than 0.1 restarts on average, and less than 0.6 h")
    assert expectation(10, 0.0113, 0.0113, 12).in_words.endswith("less than 10.1 h")


def test_where_hardly_anything_was_seen_to_last_no_number_of_restarts_is_said() -> None:
    hopeless = expectation(10, 500, 500, 0.001).in_words
    assert hopeless == "10 h of training may take over 100 times as long: these runs show no better"
