"""Measure how images are built, shared and sent on this engine; writes docs/evidence/images-figures.md.

The stack is `cpu`, on the base of `make base` or MATRIX_BASE. Needs docker-registry. Each figure has its goal beside.
"""

import argparse
import os
import platform
import random
import shutil
import socket
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.metered_line import MeteredLine
from benchmarks.rehearsed_images import use_images
from harness.base import paths
from harness.base.paths import CHECKOUT
from harness.environments import app_wheel, environment
from harness.environments.docker.build import ensure_cell_image, ensure_stack_image
from harness.environments.docker.images import find
from harness.environments.docker.verify_image import EQUAL, compare_with_rebuilt
from harness.environments.python.pins import lock_file
from harness.environments.python.wheelhouse import fetch
from harness.faults.own_engine import own_engine, why_no_own_engine
from harness.host.engine import Engine, find_engine
from harness.matrix.cells import Cell, Matrix, Preset
from harness.matrix.load import Given, load_matrix
from harness.registry.oci import Repository
from harness.registry.push_pull import push_image
from harness.rehearsal.rehearse import one_of_each_source

PAGE = CHECKOUT / "docs" / "evidence" / "images-figures.md"
BASE = os.environ.get("MATRIX_BASE", "vpoc-base:bookworm")
CELL = "cpu-plain"
TIMES = 3
KILLS = 10
# Bytes per second of the line to the registry, like a fast line at home; on loopback, sockets hold megabytes.
LINE_RATE = 20e6
# Largest share of the layers' bytes that may be sent twice: what was on its way at each kill.
MOST_TWICE = 0.02


@dataclass(frozen=True)
class Figure:
    """One row of the page."""

    what: str
    measured: str
    goal: str
    reached: bool

    @property
    def row(self) -> str:
        """Return the figure as a row of the table."""
        return f"| {self.what} | {self.measured} | {self.goal} | {'yes' if self.reached else 'no'} |"


def clean_builds(engine: Engine, matrix: Matrix, builds: int) -> Figure:
    """Build everything again from the base, and compare."""
    image = ensure_cell_image(engine, matrix.cells[CELL], print)
    equal = content = 0
    for number in range(builds):
        comparison = compare_with_rebuilt(engine, image, matrix.cells[CELL], lambda _: None)
        equal += comparison.result == EQUAL
        content += not comparison.differences
        print(
            f"  clean build {number + 1}: {comparison.result}, {comparison.same_layers} of {comparison.layers} layers",
            flush=True,
        )
    value = f"{equal} of {builds} with the same layers, {content} of {builds} with the same content"
    return Figure("clean builds that are the same", value, f"{builds} of {builds}", content == builds)


def nothing_to_do() -> Figure:
    """Run `matrix build` for an image that exists already."""
    command = [str(CHECKOUT / ".venv/bin/matrix"), "--base", BASE, "build", CELL]
    spans = [_seconds(command) for _ in range(TIMES)]
    return Figure("`matrix build` of what is there", f"{median(spans):.1f} s", "1.0 s", median(spans) <= 1)


def next_preset(engine: Engine, matrix: Matrix) -> Figure:
    """Build presets that were never built before."""
    stack = matrix.stacks["cpu"]
    before, spans, images = _layer_bytes(engine), [], []
    for number in range(TIMES):
        preset = Preset(name=f"bench{number}", description="d", variables={"BENCH": f"{number}-{time.time_ns()}"})
        began = time.perf_counter()
        images.append(ensure_cell_image(engine, Cell(stack, preset)))
        spans.append(time.perf_counter() - began)
    added = _layer_bytes(engine) - before
    layers = {image.layers for image in images}
    for image in images:
        engine.client.images.remove(image.id, force=True)
    value = f"{median(spans):.2f} s, {added} bytes of {TIMES} in the engine's own accounting"
    return Figure("a further preset", value, "0.5 s, no layer", median(spans) <= 0.5 and len(layers) == 1)


def edited_app(engine: Engine, matrix: Matrix, registry: str) -> list[Figure]:
    """Build the app with one more line, and push the image to where the one before is."""
    before = ensure_cell_image(engine, matrix.cells[CELL])
    ensure_stack_image(engine, matrix.stacks["cpu"], own=True)
    host, storage = registry.split(" ", 1)
    name = f"{host}/vpoc:{CELL}"
    push_image(engine, before.id, name, lambda _: None)
    spans, pushes, sent, kept = [], [], [], True
    with _edited() as source:
        for number in range(TIMES):
            with (source / "vpoc" / "cli.py").open("a", encoding="utf-8") as stream:
                stream.write(f"# {number} {time.time_ns()}\n")
            began = time.perf_counter()
            image = ensure_cell_image(engine, matrix.cells[CELL])
            spans.append(time.perf_counter() - began)
            kept = kept and image.layers[:-1] == before.layers[:-1]
            held = _size(Path(storage))
            began = time.perf_counter()
            push_image(engine, image.id, name, lambda _: None)
            pushes.append(time.perf_counter() - began)
            sent.append((_size(Path(storage)) - held) / 1e6)
            engine.client.images.remove(image.id, force=True)
    ensure_cell_image(engine, matrix.cells[CELL])
    value = f"{median(spans):.1f} s, {'no layer but the last' if kept else 'other layers, too'}"
    edit = Figure(
        "an edit of the app to the image of its cell", value, "10 s, 0 bytes of torch", median(spans) <= 10 and kept
    )
    value = f"{median(sent):.1f} MB, {median(pushes):.1f} s"
    pushed = Figure(
        "pushing it to a registry on loopback", value, "30 MB, 10 s", median(sent) <= 30 and median(pushes) <= 10
    )
    return [edit, pushed]


def size(engine: Engine, matrix: Matrix) -> Figure:
    """Compare the size of the image with that of the base and the unpacked wheels."""
    stack = matrix.stacks["cpu"]
    image, base = ensure_cell_image(engine, matrix.cells[CELL]), find(engine, BASE)
    if base is None or engine.keeps_compressed:
        return Figure(
            "image over base and unpacked wheels", "not measured: this engine counts compressed layers", "1.05", False
        )
    wheels = fetch(stack, lock_file(stack)).values()
    unpacked = sum(member.file_size for wheel in wheels for member in zipfile.ZipFile(wheel).infolist())
    ratio = image.size / (base.size + unpacked)
    return Figure("image over base and unpacked wheels", f"{ratio:.3f}", "1.05", ratio <= 1.05)


def killed_pulls(engine: Engine, matrix: Matrix, registry: str) -> Figure:
    """Kill pulls into an empty engine at random moments; count what the registry sends until a pull succeeds."""
    goal = "equal; nothing twice but layers in flight"
    if why := why_no_own_engine():
        return Figure("a pull killed ten times", f"not measured: {why}", goal, False)
    host = registry.split(" ", 1)[0]
    image = ensure_cell_image(engine, matrix.cells[CELL])
    push_image(engine, image.id, f"{host}/killed/vpoc:{CELL}", lambda _: None)
    manifest = Repository(f"{host}/killed/vpoc").manifest(CELL)
    assert manifest is not None
    size = sum(int(layer["size"]) for layer in manifest.parsed["layers"])
    name, port = host.split(":")
    line = MeteredLine((name, int(port)), rate=LINE_RATE)
    with line.serving() as via, own_engine() as own:
        other = own.start()
        words = [str(CHECKOUT / ".venv/bin/matrix"), "pull", CELL, "--registry", f"{via}/killed"]
        variables = {**os.environ, "DOCKER_HOST": own.address}
        for end in sorted(random.uniform(0.02, 0.95) * size for _ in range(KILLS)):
            pulling = subprocess.Popen(words, cwd=CHECKOUT, env=variables, stderr=subprocess.DEVNULL)
            while line.down < end and pulling.poll() is None:
                time.sleep(0.01)
            pulling.kill()
            pulling.wait()
            print(f"  killed at {line.down / 1e6:.0f} of {size / 1e6:.0f} MB", flush=True)
        subprocess.run(words, cwd=CHECKOUT, env=variables, check=True)
        pulled = find(other, f"{via}/killed/vpoc@{manifest.digest}")
        equal = pulled is not None and pulled.layers == image.layers
    more = line.down - size
    value = f"{'equal' if equal else 'DIFFERENT'}; {line.down / 1e6:.1f} MB came of {size / 1e6:.1f} MB"
    return Figure(f"a pull killed {KILLS} times at random", value, goal, equal and more < MOST_TWICE * size)


def nothing_to_do_for_a_stand_in(engine: Engine, matrix: Matrix) -> Figure:
    """Build a stand-in ROCm stack of the rehearsal again when it is built already."""
    stack = next(one for one in one_of_each_source(matrix, "default") if "docker" in one.executors)
    with tempfile.TemporaryDirectory() as place:
        seconds = use_images(matrix, engine, [stack], Path(place), print)[stack.name]["again"]
    what = f"building what is there, of the stand-in of {stack.name}"
    return Figure(what, f"{seconds:.1f} s", "1.0 s", seconds <= 1)


def page(engine: Engine, figures: Sequence[Figure], command: str) -> str:
    """Return the page as Markdown."""
    version = engine.client.version()["Version"]
    store = "containerd's image store" if engine.keeps_compressed else "overlay2"
    cpus = os.cpu_count()
    return "\n".join(
        [
            "# Images: measured",
            "",
            f"On {time.strftime('%Y-%m-%d', time.gmtime())}, Docker {version} with {store}, {cpus} processors,"
            f" Linux {platform.release()}, by `{command}`. The stack was `cpu`: no image contained a ROCm wheel.",
            f"Times are medians of {TIMES}; the load when it ended was {os.getloadavg()[0]:.1f}.",
            "",
            "| what | measured | goal | reached |",
            "|---|---|---|---|",
            *(figure.row for figure in figures),
            "",
        ]
    )


@contextmanager
def _edited() -> Iterator[Path]:
    """Yield a copy of the app, which is built instead of the app itself."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "app"
        shutil.copytree(paths.APP, source, ignore=shutil.ignore_patterns("__pycache__", "*_cache"))
        for module in (environment, app_wheel):
            setattr(module, "APP", source)  # noqa: B010
        try:
            yield source
        finally:
            for module in (environment, app_wheel):
                setattr(module, "APP", paths.APP)  # noqa: B010


@contextmanager
def _registry() -> Iterator[str]:
    """Yield the address of a registry and its storage folder, separated by a blank."""
    program = shutil.which("docker-registry")
    if program is None:
        raise SystemExit("benchmarks/image_figures.py: docker-registry is missing; nothing was measured")
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        settings = Path(place) / "settings.yml"
        storage = f"storage: {{filesystem: {{rootdirectory: {place}/data}}}}"
        settings.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: 127.0.0.1:{port}}}\n", encoding="utf-8")
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([program, "serve", str(settings)], stdout=quiet, stderr=quiet)
        try:
            while not _answers(port):
                time.sleep(0.1)
            yield f"127.0.0.1:{port} {place}/data"
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=CHECKOUT)
    return time.perf_counter() - began


def _layer_bytes(engine: Engine) -> int:
    return int(engine.client.api.df()["LayersSize"])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=20, help="how many clean builds (default: 20)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    given = parser.parse_args()
    engine = find_engine()
    if engine is None or find(engine, BASE) is None:
        raise SystemExit(f"benchmarks/image_figures.py: no engine, or no base {BASE}, which `make base` makes")
    matrix = load_matrix(CHECKOUT / "matrix.yaml", Given(BASE))
    with _registry() as registry:
        figures = [
            clean_builds(engine, matrix, given.builds),
            nothing_to_do(),
            nothing_to_do_for_a_stand_in(engine, matrix),
            next_preset(engine, matrix),
            *edited_app(engine, matrix, registry),
            killed_pulls(engine, matrix, registry),
            size(engine, matrix),
        ]
    command = "make bench-images" + (f" ARGS='--builds {given.builds}'" if given.builds != 20 else "")
    given.page.write_text(page(engine, figures, command), encoding="utf-8")
    print(given.page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
