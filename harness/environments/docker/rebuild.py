"""Rebuilds an image from the same inputs, without anything that the builder has cached."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from secrets import token_hex

from docker.errors import ImageNotFound

from harness.base.files.locks import locked
from harness.environments.compiled_kernel import ensure_kernel
from harness.environments.docker.base_image import digest_of_base, ensure_base
from harness.environments.docker.build import build_cell, build_part, lock_of_builds
from harness.environments.docker.build_context import fill_app, fill_runtime
from harness.environments.docker.images import Epochs, Image, cell_labels, epochs_of, inputs_of
from harness.environments.python.pins import ensure_lock
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, engine_errors
from harness.matrix.cells import Cell

REBUILT = "vpoc-rebuilt"


@contextmanager
def rebuilt(
    engine: Engine, cell: Cell, epochs: Epochs | None = None, notify: Notify = lambda _: None
) -> Iterator[Image]:
    """Rebuild the image of a cell from the base up, and remove the new image at the end; the existing image stays.

    `epochs` are the times that its files get; by default those of this checkout.

    Raises:
        UserError: when the image cannot be built.
    """
    stack, mark = cell.stack, token_hex(4)
    tags = {part: f"{REBUILT}:{mark}-{part}" for part in ("runtime", "stack", "cell")}
    try:
        with locked(lock_of_builds(stack.name), notify):
            base = ensure_base(engine, stack, notify)
            lock = ensure_lock(stack, digest_of_base(base, stack))
            ensure_kernel(notify)
            inputs, epochs = inputs_of(engine, stack), epochs or epochs_of(stack)
            again = partial(build_part, engine, stack, notify=notify, epochs=epochs)
            fill = partial(fill_runtime, stack, lock, notify)
            again("runtime", inputs.runtime_labels, fill, words=("--no-cache",), tag=tags["runtime"])
            words = ("--no-cache", "--build-arg", f"RUNTIME={tags['runtime']}")
            made = again("stack", inputs.labels, fill_app, words=words, tag=tags["stack"])
            told = cell_labels(cell, made.labels)
            yield build_cell(engine, cell, made, told, notify, below=tags["stack"], tag=tags["cell"])
    finally:
        for tag in reversed(tags.values()):
            with engine_errors(f"removing {tag}"), suppress(ImageNotFound):
                engine.client.api.remove_image(tag)
