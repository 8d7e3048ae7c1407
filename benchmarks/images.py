"""Measure images and containers on a real Docker engine. `make base` makes the base, or MATRIX_BASE names it.

- Another preset of a built stack: wall time of `matrix build`, and bytes of layers added. Goals: 1.5 s, 0 bytes.
- A rebuild after an edit of the app. Goal: 10 s, without touching the layers of torch and the other wheels.
- `matrix run-cell`, without its model check, over a bare `docker run` of the same command of 30 s. Goal: 1.05.
- The size of an image over its base plus its unpacked wheels. Goal: 1.05.
- Importing torch in a container, over the same image without its compiled modules. Goal: 0.5.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness_cost import verification
from harness.base import paths
from harness.base.paths import CHECKOUT
from harness.environments import app_wheel, environment
from harness.environments.docker.build import ensure_cell_image, ensure_stack_image
from harness.environments.docker.images import Image, find
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import fetch
from harness.host.engine import Engine, find_engine
from harness.matrix.cells import Cell, Matrix, Preset
from harness.matrix.load import Given, load_matrix

PAIRS = 5
BASE = os.environ.get("MATRIX_BASE", "vpoc-base:bookworm")
EPOCHS = int(os.environ.get("EPOCHS", "40"))
MATRIX = f"""\
schema: 2
stacks: {{cpu: {{accelerator: cpu, torch: "2.13.0"}}}}
presets: {{plain: {{description: nothing set; the control every other preset is compared with}}}}
workloads:
  half-a-minute: {{description: d, synthetic: {{sessions: 100}}, epochs: {EPOCHS}, time_limit: 600}}
selections: {{default: {{description: d, stacks: all, presets: all, workload: half-a-minute}}}}
"""
IMPORT = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"


def further_presets(engine: Engine, matrix: Matrix) -> None:
    """Build presets that were never built before."""
    stack = matrix.stacks["cpu"]
    ensure_stack_image(engine, stack, print)
    before = int(engine.client.api.df()["LayersSize"])
    spans, made = [], []
    for number in range(PAIRS):
        preset = Preset(name=f"bench{number}", description="d", variables={"BENCH": f"{number}-{time.time_ns()}"})
        began = time.perf_counter()
        made.append(ensure_cell_image(engine, Cell(stack, preset)))
        spans.append(time.perf_counter() - began)
    added = int(engine.client.api.df()["LayersSize"]) - before
    for image in made:
        engine.client.images.remove(image.id, force=True)
    print(f"a further preset: {median(spans):.2f} s, median of {PAIRS}; {added} bytes of layers (goals 1.5 s, 0)")


def edited_app(engine: Engine, matrix: Matrix) -> None:
    """Build the app with one more line into the stack."""
    cell = matrix.cells["cpu-plain"]
    layers = ensure_cell_image(engine, cell).layers
    spans = []
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "app"
        shutil.copytree(paths.APP, source, ignore=shutil.ignore_patterns("__pycache__", "*_cache"))
        for module in (environment, app_wheel):
            setattr(module, "APP", source)  # noqa: B010
        for number in range(3):
            with (source / "vpoc" / "cli.py").open("a", encoding="utf-8") as stream:
                stream.write(f"# {number} {time.time_ns()}\n")
            began = time.perf_counter()
            image = ensure_cell_image(engine, cell)
            spans.append(time.perf_counter() - began)
            assert image.layers[:-1] == layers[:-1]
            engine.client.images.remove(image.id, force=True)
        for module in (environment, app_wheel):
            setattr(module, "APP", paths.APP)  # noqa: B010
    print(f"rebuild after an edit of the app: {median(spans):.1f} s, median of 3; torch layer untouched (goal 10 s)")


def size(engine: Engine, matrix: Matrix) -> None:
    """Compare the bytes of the image with those of its base and wheels."""
    stack = matrix.stacks["cpu"]
    image = ensure_stack_image(engine, stack)
    base = find(engine, BASE)
    assert base is not None
    wheels = fetch(stack, lock_file(stack)).values()
    unpacked = sum(member.file_size for wheel in wheels for member in zipfile.ZipFile(wheel).infolist())
    ratio = image.size / (base.size + unpacked)
    told = f"{image.size / 1e6:.0f} MB over {base.size / 1e6:.0f} + {unpacked / 1e6:.0f} MB"
    print(f"image over base plus wheels unpacked: {told}: {ratio:.3f} (goal 1.05)")


def importing(engine: Engine, image: Image) -> None:
    """Measure importing torch, with compiled modules and in a copy of the image without them, in pairs."""
    builder = engine.builder
    text = f"FROM {image.tags[0]}\nUSER 0\nRUN find /opt/venv -name '*.pyc' -delete\nUSER 65534\n"
    bare = "vpoc-bench:without-bytecode"
    command = [builder.program, *builder.build, "--tag", bare, "-"]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, env=builder.variables)
    ratios = []
    for _ in range(PAIRS):
        with_bytecode, without = (import_seconds(engine, name) for name in (image.tags[0], bare))
        ratios.append(with_bytecode / without)
        print(f"  {with_bytecode:.2f} s with, {without:.2f} s without", flush=True)
    engine.client.images.remove(bare, force=True)
    print(f"importing torch, with over without compiled modules: {median(ratios):.2f}, median of {PAIRS} (goal 0.5)")


def import_seconds(engine: Engine, image: str) -> float:
    """Return the seconds of an import, as a fresh container reports them."""
    options = {"entrypoint": "/opt/venv/bin/python", "network_mode": "none", "read_only": True, "remove": True}
    said = engine.client.containers.run(image, ["-W", "ignore", "-c", IMPORT], **options)
    return float(said.split()[-1])


def seconds(command: list[str], **options: Any) -> float:
    """Run a command and return its wall time."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.perf_counter() - began


def harness_cost() -> None:
    """Compare `matrix run-cell` with the `docker run` that it prints, in pairs."""
    variables = {**os.environ, "MATRIX_BASE": BASE, "MATRIX_EXECUTOR": "docker"}
    with tempfile.TemporaryDirectory() as place:
        matrix, results = Path(place) / "matrix.yaml", Path(place) / "results"
        matrix.write_text(MATRIX, encoding="utf-8")
        program = [str(CHECKOUT / ".venv" / "bin" / "matrix"), "--matrix", str(matrix), "--results", str(results)]
        # The first run makes the data and the verifier's environment, so that no timed run does.
        subprocess.run(
            [*program, "run-cell", "cpu-plain", "--run-id", "first"], check=True, cwd=CHECKOUT, env=variables
        )
        printed = [*program, "run-cell", "cpu-plain", "--print-command"]
        script = subprocess.run(printed, check=True, capture_output=True, text=True, cwd=CHECKOUT, env=variables).stdout
        prepare, command = script.strip().splitlines()
        subprocess.run(shlex.split(prepare), check=True)
        bare = [word for word in shlex.split(command) if word not in ("--ulimit", "memlock=-1:-1")]
        ratios = []
        for number in range(PAIRS):
            run = [*program, "run-cell", "cpu-plain", "--run-id", f"pair{number}"]
            whole, alone = seconds(run, cwd=CHECKOUT, env=variables), seconds(bare)
            check = verification(results / "runs" / f"pair{number}")
            ratios.append((whole - check) / alone)
            record = json.loads((results / "runs" / f"pair{number}" / "record.json").read_text(encoding="utf-8"))
            assert record["outcome"] == "completed"
            told = f"run-cell {whole:.1f} s, of it verification {check:.1f} s; docker run {alone:.1f} s"
            print(f"  pair {number + 1}: {told}: {ratios[-1]:.3f}", flush=True)
        print(f"run-cell over docker run: median {median(ratios):.3f} of {PAIRS} (goal 1.05)")


def main() -> None:
    """Measure, and print the figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    engine = find_engine()
    if engine is None:
        raise SystemExit("benchmarks/images.py: no Docker engine answers; nothing was measured")
    if find(engine, BASE) is None:
        raise SystemExit(f"benchmarks/images.py: base image {BASE} is not here; `make base` makes it")
    matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(BASE))
    further_presets(engine, matrix)
    edited_app(engine, matrix)
    size(engine, matrix)
    importing(engine, ensure_stack_image(engine, matrix.stacks["cpu"]))
    harness_cost()


if __name__ == "__main__":
    main()
