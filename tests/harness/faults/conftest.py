"""Progress lines as the app writes them."""

import json
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def line() -> Callable[..., str]:
    return progress_line


def progress_line(monotonic: float, phase: str = "step", rank: int = 0) -> str:
    memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    numbers = {"max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}
    told: dict[str, Any] = {"schema": 1, "wall": 1.0, "monotonic": monotonic, "rank": rank, "pid": 1, "phase": phase}
    return json.dumps({**told, "done": 1, "total": 2, **numbers}) + "\n"
