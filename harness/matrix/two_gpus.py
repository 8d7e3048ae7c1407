"""The order of stacks on several GPUs, from facts in the matrix file. Pure."""

from collections.abc import Iterable

from harness.matrix.cells import Matrix, TwoGpus
from harness.matrix.stacks import Stack


def in_turn(matrix: Matrix, stacks: Iterable[str], *, atomics: bool | None, several: bool) -> list[str]:
    """Return the names of stacks in the order in which a campaign runs them, on `several` GPUs or on one.

    If the slots are known to lack PCIe `atomics`, stacks whose collectives need them come last.
    """
    if atomics is not False or not several:
        return list(stacks)

    def last(name: str) -> bool:
        step = step_of(matrix, matrix.stacks[name])
        return step is not None and step.last_without_atomics

    return sorted(stacks, key=last)


def always_on_two(matrix: Matrix, stack: Stack) -> bool:
    """Return whether a stack that trained on one GPU goes on to two whatever time is left."""
    step = step_of(matrix, stack)
    return step is not None and step.always


def step_of(matrix: Matrix, stack: Stack) -> TwoGpus | None:
    """Return the entry of `two_gpus` that covers a stack's ROCm version; None if there is none."""
    return next((step for step in matrix.two_gpus if stack.rocm and step.holds(stack.rocm)), None)
