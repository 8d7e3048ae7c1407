"""Tests of when memory is in so many pieces that a fresh process should continue the training."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.evidence.files.app_files import Progress
from harness.training.attempt import _restart_when_fragmented
from harness.training.fragmentation import FragmentationWatch

GIB = 1 << 30


def line(minute: float, unused: float, *, held: int | None = 8 * GIB, phase: str = "step", rank: int = 0) -> Progress:
    used = None if held is None else int(held * (1 - unused))
    memory = {"rss_bytes": 1, "device_allocated_bytes": used, "device_reserved_bytes": held}
    told: dict[str, Any] = {"wall": 0.0, "monotonic": minute * 60, "rank": rank, "pid": 1, "phase": phase, "done": 1}
    rest: dict[str, Any] = {"total": None, "max_step_s": None, "loss": None, "gradient_norm": None}
    return Progress.model_validate({"schema": 2, **told, **rest, "memory": memory})


def first_restart(lines: Sequence[Progress]) -> tuple[float, str] | None:
    """Return the minute at which a restart is first asked for, and the reason; None if it never is."""
    watch = FragmentationWatch()
    found = ((told.monotonic / 60, why) for told in lines if (why := watch.saw(told, told.monotonic)))
    return next(found, None)


def test_an_app_whose_clock_runs_ahead_is_not_restarted_at_once() -> None:
    observe = _restart_when_fragmented()
    assert first_restart([line(minute, 0.1 + minute / 100) for minute in range(60)]) is not None
    # The same lines, all within a second by the harness's clock: nothing is raised, which would be the restart.
    assert [observe(line(minute, 0.1 + minute / 100)) for minute in range(60)] == [None] * 60


def test_what_rises_for_four_windows_is_reported_with_its_numbers() -> None:
    found = first_restart([line(minute, 0.1 + minute / 100) for minute in range(60)])
    assert found is not None
    # The medians of ten lines each are .145, .245, .345 and .445; bytes are whole numbers.
    assert found == (40, "rank 0: unused pieces rose from 15 % to 45 % of the memory held within 40 min")


@pytest.mark.parametrize(
    "lines",
    [
        [line(minute, 0.6) for minute in range(300)],
        [line(minute, 0.25 if minute < 60 else 0.5) for minute in range(300)],
        [line(minute, minute / 200) for minute in range(50)],
        [line(minute, 0.1 + minute / 100, held=GIB // 2) for minute in range(60)],
        [line(minute, 0.1 + minute / 100, held=None) for minute in range(60)],
        [line(minute, 0.1 + minute / 100, phase="validate") for minute in range(60)],
        [line(minute, 0.5 + minute % 20 / 50) for minute in range(300)],
    ],
    ids=["even", "one jump", "little", "of little memory", "no GPU", "validating", "up and down"],
)
def test_anything_else_is_left_alone(lines: list[Progress]) -> None:
    assert first_restart(lines) is None


def test_ranks_are_told_apart() -> None:
    mixed = [line(minute, 0.1 + minute / 100 if rank else 0.1, rank=rank) for minute in range(60) for rank in (0, 1)]
    found = first_restart(mixed)
    assert found is not None
    assert found[1].startswith("rank 1: ")
