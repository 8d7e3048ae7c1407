"""Images of a stack that only the tests have: a stand-in replaces the app, and the labels are those of real builds."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.base.contract import CONTRACT
from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.environments.docker.images import (
    CONTRACT_LABEL,
    INPUTS,
    PREFIX,
    Image,
    cell_labels,
    cell_tag,
    find,
    inputs_of,
    stack_tag,
)
from harness.environments.docker.own_images import remember
from harness.host.engine import Engine, find_engine
from harness.matrix.cells import Matrix
from harness.matrix.load import load_matrix

BASE = "vpoc-base:bookworm"
STAND_IN = CHECKOUT / "harness" / "rehearsal" / "stand_in_app.py"
DOCKERFILE = f"""\
FROM {BASE}
COPY stand_in_app.py /opt/
RUN mkdir -p /opt/venv/bin && cd /opt/venv/bin \\
    && echo '#!/bin/sh' > python && echo 'exec /usr/bin/python3 -I -S /opt/stand_in_app.py "$@"' >> python \\
    && chmod 755 python
"""
MATRIX = """\
schema: 2
base: {base}
stacks: {{cpu-stand-in: {{accelerator: cpu, torch: "2.13.0"}}}}
presets: {{plain: {{description: nothing set}}}}
workloads:
  trivial:
    {{description: d, epochs: {epochs}, batch_size: 64, time_limit: 600, synthetic: {{sessions: 26}}, lookback: 20}}
hosts: {{lab: {{images: "{images}"}}}}
selections: {{default: {{description: d, stacks: all, presets: all, workload: trivial}}}}
"""
CELL = "cpu-stand-in-plain"


def engine_here(why_not: str | None = None) -> Engine:
    """Return this host's engine; with none, or a reason against it, skip the test, or fail if an engine is required."""
    try:
        found, why = find_engine(), why_not or "no Docker engine answers"
    except UserError as error:
        found, why = None, why_not or str(error)
    if found and not why_not:
        return found
    if os.environ.get("REQUIRE_DOCKER"):
        pytest.fail(why)
    pytest.skip(why)


def write_matrix(folder: Path, images: str, epochs: int = 1) -> Matrix:
    """Write a matrix file whose cluster `lab` takes images from the place `images`."""
    file = folder / "matrix.yaml"
    file.write_text(MATRIX.format(base=BASE, images=images, epochs=epochs))
    return load_matrix(file)


@contextmanager
def built(engine: Engine, matrix: Matrix, folder: Path) -> Iterator[Image]:
    """Build the images and yield the image of the cell; remove them afterwards."""
    if find(engine, BASE) is None:
        subprocess.run([CHECKOUT / "images" / "base.sh", "bookworm"], check=True)
    cell = matrix.cells[CELL]
    inputs = inputs_of(engine, cell.stack)
    stack = {**inputs.wanted_of("stack"), CONTRACT_LABEL: str(CONTRACT), INPUTS: "0" * 64}
    of_cell = {**stack, **cell_labels(cell, inputs.labels), f"{PREFIX}.kind": "cell"}
    folder.mkdir(exist_ok=True)
    (folder / STAND_IN.name).write_bytes(STAND_IN.read_bytes())
    # The name that the harness would give the stack's image; the harness would add it anyway, and it would be left.
    below = stack_tag(stack)
    tags = (below, cell_tag(cell))
    try:
        remember(_build(engine, folder, DOCKERFILE, stack, below))
        yield _build(engine, folder, f"FROM {below}\n", of_cell, cell_tag(cell))
    finally:
        for tag in reversed(tags):
            if find(engine, tag):
                engine.client.api.remove_image(tag, force=True)


def _build(engine: Engine, folder: Path, dockerfile: str, labels: Mapping[str, str], tag: str) -> Image:
    builder = engine.builder
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    command = [builder.program, *builder.build, "--quiet", "--tag", tag, *words, "--file", "-", str(folder)]
    subprocess.run(command, input=dockerfile, text=True, env=dict(builder.variables), check=True, capture_output=True)
    image = find(engine, tag)
    assert image
    return image
