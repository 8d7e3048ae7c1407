"""Make a stand-in ROCm stack of the rehearsal into an image and use it: build, push, pull, verify.

`use_images` starts a rehearsal that runs this program for each stack, with the rehearsal's locks and caches and its
package index on loopback.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import docker

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.images import find
from harness.environments.docker.verify_image import compare_with_rebuilt
from harness.evidence.records import Results
from harness.host.engine import Engine, find_engine
from harness.host.engine_errors import Notify
from harness.matrix.cells import Cell, Matrix
from harness.matrix.load import load_matrix
from harness.matrix.stacks import Stack
from harness.registry.attestations.check import check_offline
from harness.registry.image_commands import build, plan_build, pull_cell, push_cell
from harness.rehearsal.carry import PLAIN
from harness.rehearsal.rehearse import Rehearsing
from harness.rehearsal.steps import ChildLine, RehearsalJob

PROGRAM = (sys.executable, "-m", "benchmarks.rehearsed_images")
# Variables that name the registry, the engine that pulls, and the file for the figures.
REGISTRY, OTHER, FIGURES = "REHEARSED_REGISTRY", "REHEARSED_OTHER_ENGINE", "REHEARSED_FIGURES"
TIMES = 3


def use_images(
    matrix: Matrix, engine: Engine, stacks: Sequence[Stack], place: Path, notify: Notify, **variables: str
) -> dict[str, Any]:
    """Return the figures of each stack, with those of pushing and pulling if both `REGISTRY` and `OTHER` are given.

    Raises:
        UserError: if a stack fails.
    """
    rehearsing = Rehearsing(matrix, Results(place / "results"), engine, notify=notify, program=PROGRAM)
    found = {}
    before = dict(os.environ)
    os.environ.update({FIGURES: str(place / "figures.json"), **variables})
    try:
        with closing(rehearsing.all(stacks)) as carried:
            for one in carried:
                if one.problem:
                    raise UserError(f"{one.stack}: {one.problem}")
                found[one.stack] = json.loads((place / "figures.json").read_text(encoding="utf-8"))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return found


def use_image(cell: Cell, notify: Notify) -> dict[str, Any]:
    """Build the image of a cell, build it again when there is nothing to do, and push, pull and verify it."""
    engine = find_engine()
    assert engine is not None
    image = ensure_cell_image(engine, cell, notify)
    figures: dict[str, Any] = {"again": sorted(_seconds_again(cell) for _ in range(TIMES))[TIMES // 2]}
    registry, address = os.environ.get(REGISTRY), os.environ.get(OTHER)
    if registry and address:
        reference = push_cell(engine, cell, registry, notify)
        other = Engine(address, docker.DockerClient(base_url=address))
        told = pull_cell(other, cell, registry, reference.partition("@")[2], {}, notify)
        pulled = find(other, reference)
        assert pulled is not None
        matrix = load_matrix(CHECKOUT / "matrix.yaml")
        matrix = matrix.model_copy(update={"stacks": {cell.stack.name: cell.stack}})
        checks = check_offline(other, pulled, matrix, None, notify)
        figures |= {
            "same_layers": pulled.layers == image.layers,
            "signed_by": told["signed_by"],
            "checks": [asdict(check) for check in checks],
            "rebuilt": compare_with_rebuilt(engine, image, cell, notify).plain,
        }
    return figures


def _seconds_again(cell: Cell) -> float:
    """Return the seconds of a separate program that finds nothing to build."""
    began = time.perf_counter()
    subprocess.run([*PROGRAM, "again"], input=cell.stack.model_dump_json(), text=True, check=True, cwd=CHECKOUT)
    return time.perf_counter() - began


def _build_again() -> None:
    """Plan and build as `matrix build` does, which reads the matrix too."""
    cell, engine = Cell(Stack.model_validate_json(sys.stdin.read()), PLAIN), find_engine()
    assert engine is not None
    load_matrix(CHECKOUT / "matrix.yaml")
    plan = plan_build(engine, [cell])
    assert plan.there == (cell,), plan
    build(engine, plan, lambda _: None)


def _carry() -> None:
    job = RehearsalJob.parse(sys.stdin.read())

    def tell(text: str) -> None:
        _write(ChildLine(doing=" ".join(text.split())))

    try:
        figures = use_image(Cell(job.stack, PLAIN), tell)
        Path(os.environ[FIGURES]).write_text(json.dumps(figures), encoding="utf-8")
        _write(ChildLine(outcome="completed"))
    except UserError as error:
        _write(ChildLine(problem=str(error)))
        sys.exit(2)


def _write(line: ChildLine) -> None:
    print(line.model_dump_json(exclude_none=True), flush=True)


if __name__ == "__main__":
    _build_again() if sys.argv[1:] == ["again"] else _carry()
