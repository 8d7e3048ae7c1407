"""How far first steps on a device may differ from the CPU's reference, by the tolerances of `matrix run`."""

RELATIVE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
GROWTH = {"mlp": 1.0, "attention": 3.0, "attention-small": 3.0}
COMPARED_STEPS = 16
"""The number of steps whose values are compared one by one; later only the course of the loss is compared."""
LATE = 0.1
"""Allowed relative difference of the mean loss in the last quarter of the steps."""


def tolerance_of(kind: str, dtype: str, step: int) -> float:
    """Return the allowed relative difference in a step, counted from 1."""
    return float(RELATIVE[dtype] * GROWTH[kind] ** (step - 1))
