"""What this host can do for some cells: the engine they run on, the interpreters, the room on the disk."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness import environments
from harness.contracts import ExecutorName, HostFacts
from harness.engine import Engine, find_engine
from harness.errors import UserError
from harness.host.displays import headless_first
from harness.host.fingerprint import training_gpus
from harness.images import find_cell_image, find_older_image, inputs_of
from harness.matrix import Cell, Stack
from harness.paths import ENVIRONMENTS
from harness.plan import Capabilities


def choose_engine(cells: Sequence[Cell], executor: ExecutorName | None) -> Engine | None:
    """The engine that cells are run on; None where they run as processes.

    Without `executor` that is the engine that answers, unless no cell can run in a container.

    Raises:
        UserError: when a container was asked for and no engine answers, or this user may not use the one there is.
    """
    contained = any("docker" in cell.stack.executors for cell in cells)
    if executor == "process" or (executor is None and not contained):
        return None
    engine = find_engine()
    if engine is None and executor == "docker":
        raise UserError("no Docker engine answers; start it (`sudo systemctl start docker`) or give --executor process")
    return engine


def capabilities_of(
    host: HostFacts, engine: Engine | None, cells: Sequence[Cell], interpreter: Path | None
) -> Capabilities:
    """What this host can do for these cells, in containers where there is an engine."""
    gpus = headless_first(training_gpus(host))
    stacks = {cell.stack.name: cell.stack for cell in cells if cell.stack.accelerator != "any" and not cell.excluded}
    cache = _existing(ENVIRONMENTS)
    if engine:
        made = frozenset(name for name, stack in stacks.items() if _has_images(engine, stack, cells))
        return Capabilities(
            gpus=gpus,
            executor="docker",
            pythons=frozenset(),
            free_bytes=shutil.disk_usage(engine.folder).free if engine.folder else None,
            place=str(engine.folder or "the engine's disk"),
            keeps_compressed=engine.keeps_compressed,
            wheels_beside=engine.folder is not None and engine.folder.stat().st_dev == cache.stat().st_dev,
            made=made,
        )
    versions = {stack.python for stack in stacks.values()}
    return Capabilities(
        gpus=gpus,
        executor="process",
        pythons=frozenset(version for version in versions if environments.find_python(version)),
        free_bytes=shutil.disk_usage(cache).free,
        place=str(cache),
        made=frozenset(name for name in stacks if (ENVIRONMENTS / name / environments.STAMP).is_file()),
        interpreter=str(interpreter) if interpreter else None,
    )


def _has_images(engine: Engine, stack: Stack, cells: Sequence[Cell]) -> bool:
    """Whether the images of these cells cost no download: their stack is built, or they were pulled."""
    inputs = inputs_of(engine, stack)
    return find_older_image(engine, inputs) is not None or all(
        find_cell_image(engine, cell, inputs) for cell in cells if cell.stack == stack
    )


def _existing(place: Path) -> Path:
    return next(path for path in (place, *place.parents) if path.exists())
