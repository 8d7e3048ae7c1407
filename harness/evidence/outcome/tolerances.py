"""Tolerances: the allowed differences between the numbers of a run and those computed on this host's CPU."""

import math
from collections.abc import Mapping

from harness.evidence.files.app_files import StepNumbers
from harness.matrix.strategies import ModelKind

# Largest relative difference between the first step's numbers and the float32 reference on the CPU.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
# In a step made again, the gradient norm may differ by this many times the tolerance of the loss: late in a training
# the parts of the gradient cancel, and the rounding error is large beside the rest (measured, in
# docs/evidence/numbers.md).
NORM_FACTOR = 5
# Factor by which the tolerance grows with each step. Adam's first updates follow little but the signs of gradients, so
# that rounding turns into whole steps: the attention models amplify that, the mlp does not (measured, in
# docs/evidence/numbers.md).
GROWTH: Mapping[ModelKind, float] = {"mlp": 1.0, "attention": 3.0, "attention-small": 3.0}
# Differences below this are ignored.
ROUNDING = 1e-6
# First steps of a training whose numbers are compared.
COMPARED_STEPS = 16


def tolerance_of(kind: ModelKind, dtype: str, step: int) -> float:
    """Return the largest relative difference allowed in a step, counted from 1."""
    return float(TOLERANCE[dtype] * GROWTH[kind] ** (step - 1))


def steps_agree(got: StepNumbers, expected: StepNumbers, tolerance: float) -> bool:
    """Return whether the numbers of a step are the expected ones, within a relative tolerance."""
    same = got.step == expected.step and agree(got.loss, expected.loss, tolerance)
    return same and norms_agree(got.gradient_norm, expected.gradient_norm, tolerance)


def norms_agree(got: float | None, expected: float | None, tolerance: float) -> bool:
    """Return whether gradient norms agree; a step that a loss scaler skipped has no norm to compare."""
    expected = math.inf if expected is None else expected
    return got is None or agree(got, expected, tolerance)


def agree(one: float, other: float, tolerance: float) -> bool:
    """Return whether the larger number exceeds the smaller one by at most `tolerance` times the smaller one.

    math.isclose takes a share of the larger number instead, so that a large tolerance would let everything pass.
    """
    return abs(one - other) <= max(tolerance * min(abs(one), abs(other)), ROUNDING) or one == other
