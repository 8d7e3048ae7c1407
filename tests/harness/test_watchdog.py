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
