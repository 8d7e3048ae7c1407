"""Tests of the steps whose states the app keeps; tests/app/training/test_verify.py has the same numbers."""

from typing import Any

import pytest

from harness.evidence.files.app_files import Result
from harness.evidence.files.kept_states import drawn_steps, pick, wrong_states

NONCE = "0" * 32


def told(values: dict[str, Any], **changes: Any) -> Result:
    return Result.model_validate({**values, **changes})


def test_the_steps_are_those_that_the_app_draws(result_values: dict[str, Any]) -> None:
    assert drawn_steps(told(result_values), NONCE) == [2, 8, 11, 20, 23, 32]
    assert drawn_steps(told(result_values, model_kind="attention"), NONCE) == [5, 9, 15, 18, 24, 27]
    assert wrong_states(told(result_values), NONCE, 0) == ()
    # If a result named one state many times, the harness would most likely pick that one.
    states = result_values["states"]
    assert wrong_states(told(result_values, states=[*states, states[0]]), NONCE, 0) == (2,)


@pytest.mark.parametrize(
    ("epochs", "steps", "parameters", "parts"),
    [(2, 1000, 100, 6), (1, 2, 100, 2), (200, 1000, 100, 30), (200, 1000, 2_900_000, 11), (200, 1000, 1 << 30, 3)],
)
def test_there_are_so_many(epochs: int, steps: int, parameters: int, parts: int, result_values: dict[str, Any]) -> None:
    model = {**result_values["model"], "parameters": parameters}
    drawn = drawn_steps(
        told(
            result_values,
            epochs_requested=epochs,
            steps_per_epoch=steps // epochs,
            steps_done=steps,
            model=model,
        ),
        NONCE,
    )
    assert [(step * parts - 1) // steps for step in drawn] == list(range(parts))


def test_one_of_those_that_were_kept_is_picked(result_values: dict[str, Any]) -> None:
    result = told(result_values)
    assert {picked.step for _ in range(200) if (picked := pick(result))} == {2, 8, 11, 20, 23, 32}
    assert pick(told(result_values, states=[])) is None
    assert pick(told(result_values, steps_done=1)) is None
