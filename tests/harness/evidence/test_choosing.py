"""Tests of which epoch a training had to keep, and whether it had to end where it did."""

from typing import Any

import pytest

from harness.evidence.choosing import kept_epoch, may_end_early
from harness.evidence.files.app_files import Training

BEST = {"keep": "best", "patience": 2}


def told(values: dict[str, Any], *inner: float | None) -> Training:
    losses = [{"epoch": n, "train": 0.6, "validation": 0.6, "inner": loss} for n, loss in enumerate(inner, 1)]
    keys = {name: values[name] for name in Training.model_fields if name in values}
    return Training.model_validate({**keys, "epochs_done": len(inner), "epoch_losses": losses})


@pytest.mark.parametrize(
    ("inner", "kept"),
    [((0.7, 0.6, 0.65), 2), ((0.6, 0.6, 0.7), 1), ((0.7, 0.6, 0.5), 3), ((None, None, None), 3)],
    ids=["lowest", "first of equal ones", "last", "none chooses"],
)
def test_the_first_epoch_of_the_lowest_inner_loss_is_kept(
    inner: tuple[float | None, ...], kept: int, result_values: dict[str, Any]
) -> None:
    assert kept_epoch(told(result_values, *inner), BEST) == kept
    assert kept_epoch(told(result_values, *inner), {**BEST, "keep": "last"}) == 3
    assert kept_epoch(told(result_values, *inner), {}) == 3


@pytest.mark.parametrize(
    ("inner", "ends"),
    [
        ((0.6, 0.7, 0.7), True),
        ((0.7, 0.6, 0.65, 0.6), True),
        ((0.6, 0.7), False),
        ((0.7, 0.6, 0.65), False),
        ((0.6, 0.7, 0.7, 0.7), False),
        ((None, None, None), False),
    ],
    ids=["two no better", "an equal one is no better", "one", "one since", "too late", "none chooses"],
)
def test_a_training_ends_after_the_epochs_of_its_patience_and_no_later(
    inner: tuple[float | None, ...], *, ends: bool, result_values: dict[str, Any]
) -> None:
    assert may_end_early(told(result_values, *inner), BEST) is ends
    assert not may_end_early(told(result_values, *inner), {**BEST, "patience": 0})
    assert not may_end_early(told(result_values, *inner), {})
