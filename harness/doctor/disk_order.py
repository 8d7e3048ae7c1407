"""The order in which a campaign makes stacks, so that the doctor and the plan say the same."""

from collections.abc import Iterable, Sequence

from harness.doctor.compatibility import is_outside
from harness.environments.capabilities import Capabilities, stack_by_stack
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack
from harness.matrix.two_gpus import in_turn


def disk_order(
    matrix: Matrix,
    names: Iterable[str],
    before: Sequence[Stack],
    able: Capabilities,
    atomics: Sequence[bool | None],
) -> list[Stack]:
    """Return stacks in the order in which they take disk and are run; `before` are made before them.

    Where slots lack PCIe atomics, stacks whose collectives need them come last. If one that the driver supports would
    have no room then, those that the driver does not support come after all others.

    `atomics`: whether the slot of each GPU has them; None where that is unknown.
    """
    several = len(atomics) > 1
    turns = in_turn(matrix, names, atomics=False if False in atomics else None, several=several)
    stacks = [matrix.stacks[name] for name in turns]
    rooms = stack_by_stack([*before, *stacks], able)[len(before) :]
    if any(room.fits is False and not is_outside(able.driver, one) for one, room in zip(stacks, rooms, strict=True)):
        return sorted(stacks, key=lambda one: is_outside(able.driver, one))
    return stacks
