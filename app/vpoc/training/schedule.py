"""The learning rate of each optimizer step."""

import math
from collections.abc import Callable

Rate = Callable[[int], float]
"""Returns the learning rate of a step, counted from 1."""
SCHEDULES = ("constant", "linear", "cosine")
"""The names of the schedules."""


def rate_of(schedule: str, learning_rate: float, steps: int) -> Rate:
    """Return the rate of each of `steps` steps: constant, or from `learning_rate` down to 0, linear or as a cosine."""
    if schedule == "linear":
        return lambda step: learning_rate * (1 - (step - 1) / steps)
    if schedule == "cosine":
        return lambda step: learning_rate * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
    return lambda _step: learning_rate
