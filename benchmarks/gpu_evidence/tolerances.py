"""How far the first steps on a device may be from the CPU's reference: the numbers by which `matrix run` judges."""

RELATIVE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
GROWTH = {"mlp": 1.0, "attention": 3.0, "attention-small": 3.0}
COMPARED_STEPS = 16
"""Steps of which each number is compared. Later only the course of the loss is."""
LATE = 0.1
"""Relative difference allowed of the mean loss of the last quarter of the steps."""


def tolerance_of(kind: str, dtype: str, step: int) -> float:
    """Relative difference allowed in a step, counted from 1."""
    return float(RELATIVE[dtype] * GROWTH[kind] ** (step - 1))
