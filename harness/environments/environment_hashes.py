"""The environment hashes that cells would have now, which tell which records are stale."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.base.errors import UserError
from harness.environments.environment import environment_hash, identify
from harness.environments.python.pins import base_digest, lock_file
from harness.matrix.cells import Matrix
from harness.matrix.stacks import Stack
from harness.matrix.variants import find_cell

if TYPE_CHECKING:
    from harness.host.engine import Engine


def current_hashes(matrix: Matrix, kept: set[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """Return the environment hashes that cells would have now, by cell and executor, if known."""
    known: dict[tuple[str, str], dict[str, Any] | None] = {}
    hashes = {}
    for cell_id, executor in kept:
        cell = find_cell(matrix, cell_id)
        if cell is None or cell.stack.accelerator == "any" or cell.stack.torch is None:
            continue
        key = cell.stack.name, executor
        if key not in known:
            known[key] = identify(cell.stack) if executor == "process" else _identity_of_image(cell.stack)
        if identity := known[key]:
            hashes[cell_id, executor] = environment_hash(identity, cell.preset)
    return hashes


def _identity_of_image(stack: Stack) -> dict[str, Any] | None:
    if not lock_file(stack).is_file():
        return None
    # Import and search only with a lock: both are slow, and without a lock they tell nothing.
    from harness.environments.docker.images import inputs_of  # noqa: PLC0415

    identity = inputs_of(None if base_digest(stack) else _engine_if_any(), stack).identity
    return identity if all(identity.values()) else None


@cache
def _engine_if_any() -> "Engine | None":
    """Return the engine if there is one; commands that need one report why it cannot be used."""
    from harness.host.engine import find_engine  # noqa: PLC0415

    try:
        return find_engine()
    except UserError:
        return None
