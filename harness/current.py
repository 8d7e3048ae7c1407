"""The environment hashes that cells would have now, to tell which records are stale."""

from collections.abc import Mapping
from typing import Any

from harness import environments
from harness.engine import Engine, find_engine
from harness.errors import UserError
from harness.images import inputs_of
from harness.matrix import Matrix, Stack


def current_hashes(matrix: Matrix, kept: set[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """The environment hashes that cells would have now, by cell and executor, where that is known."""
    engine = _engine_if_any() if any(executor == "docker" for _, executor in kept) else None
    known: dict[tuple[str, str], dict[str, Any] | None] = {}
    hashes = {}
    for cell_id, executor in kept:
        cell = matrix.cells.get(cell_id)
        if cell is None or cell.stack.accelerator == "any" or cell.stack.framework != "torch":
            continue
        key = cell.stack.name, executor
        if key not in known:
            known[key] = _identify(cell.stack, executor, engine)
        if identity := known[key]:
            hashes[cell_id, executor] = environments.environment_hash(identity, cell.preset)
    return hashes


def _identify(stack: Stack, executor: str, engine: Engine | None) -> dict[str, Any] | None:
    if executor == "process":
        return environments.identify(stack)
    identity = inputs_of(engine, stack).identity if engine else {}
    return identity if identity and all(identity.values()) else None


def _engine_if_any() -> Engine | None:
    """The engine, for looking only: what keeps it from being used is told by the commands that need it."""
    try:
        return find_engine()
    except UserError:
        return None
