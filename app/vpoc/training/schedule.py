"""The learning rate of each optimizer step."""

import math
from collections.abc import Callable

Rate = Callable[[int], float]
"""Step, from 1 -> learning rate."""
SCHEDULES = ("constant", "linear", "cosine")
"""Their names."""


def rate_of(schedule: str, learning_rate: float, steps: int) -> Rate:
    """The rate of a training of so many steps: constant, or from `learning_rate` down to 0, linearly or by a cosine."""
    if schedule == "linear":
        return lambda step: learning_rate * (1 - (step - 1) / steps)
    if schedule == "cosine":
        return lambda step: learning_rate * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
    return lambda _step: learning_rate
