"""The order in which stacks take disk space."""

from collections.abc import Sequence

from harness.doctor.compatibility import is_outside
from harness.environments.capabilities import Capabilities, stack_by_stack
from harness.matrix.stacks import Stack


def supported_first(stacks: Sequence[Stack], before: Sequence[Stack], able: Capabilities) -> Sequence[Stack]:
    """Return stacks in the order in which they take disk; `before` are made before them.

    If one that the driver supports would have no room, those that the driver does not support come last.
    """
    rooms = stack_by_stack([*before, *stacks], able)[len(before) :]
    if any(room.fits is False and not is_outside(able.driver, one) for one, room in zip(stacks, rooms, strict=True)):
        return sorted(stacks, key=lambda one: is_outside(able.driver, one))
    return stacks
