from typing import Any

import pytest

from harness.contracts import Phase, Progress
from harness.watchdog import LIMITS, Watchdog


def line(phase: Phase, done: int = 0, rank: int = 0) -> Progress:
    memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    values: dict[str, Any] = {
        "schema": 1, "wall": 0, "monotonic": 0, "rank": rank, "pid": 1, "phase": phase, "done": done, "total": None,
        "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory,
    }  # fmt: skip
    return Progress.model_validate(values)


def test_before_the_first_line_the_limit_of_import_holds() -> None:
    dog = Watchdog(now=100)
    assert dog.stuck(100 + LIMITS["import"]) is None
    assert dog.stuck(101 + LIMITS["import"]) is not None


@pytest.mark.parametrize("phase", LIMITS)
def test_each_phase_has_its_own_limit(phase: Phase) -> None:
    dog = Watchdog(now=0)
    dog.saw(line(phase, 3), now=50)
    since = 0 if (phase, 3) == ("import", 0) else 50
    assert dog.stuck(since + LIMITS[phase]) is None
    told = dog.stuck(since + LIMITS[phase] + 1)
    assert told is not None
    assert f"phase {phase} at 3" in told


def test_only_an_advance_counts() -> None:
    dog = Watchdog(now=0, limits={**LIMITS, "step": 10})
    dog.saw(line("step", 1), now=0)
    dog.saw(line("step", 1), now=9)
    assert dog.stuck(10.5) is not None
    dog.saw(line("step", 2), now=11)
    assert dog.stuck(20.5) is None


def test_the_stuck_rank_is_named_while_others_go_on() -> None:
    dog = Watchdog(now=0, limits={**LIMITS, "step": 10})
    for second in range(30):
        dog.saw(line("step", second, rank=0), now=second)
        dog.saw(line("step", min(second, 12), rank=1), now=second)
    told = dog.stuck(29)
    assert told is not None
    assert told.startswith("rank 1 ")


def test_a_rank_that_sleeps_is_named_although_the_one_that_waits_for_it_stood_still_before() -> None:
    dog = Watchdog(now=0, limits={**LIMITS, "step": 10})
    dog.saw(line("step", 41, rank=0), now=20.0)
    dog.saw(line("step", 40, rank=1), now=20.9)
    assert dog.stuck(30) is None
    told = dog.stuck(30.1)
    assert told is not None
    assert told.startswith("rank 1 made no progress for 9 s in phase step at 40; rank 0 made no progress for 10 s")


def test_a_rank_that_is_through_may_wait_for_the_others() -> None:
    dog = Watchdog(now=0, limits={**LIMITS, "teardown": 5, "checkpoint": 60})
    dog.saw(line("teardown", rank=1), now=10)
    dog.saw(line("checkpoint", rank=0), now=12)
    assert dog.stuck(72) is None
    told = dog.stuck(72.1)
    assert told is not None
    assert "rank 1" not in told
    dog.saw(line("teardown", rank=0), now=73)
    assert dog.stuck(78) is None
    told = dog.stuck(78.1)
    assert told is not None
    assert "rank 0" in told
    assert "rank 1" in told
