"""A real Docker engine, base images from Debian's packages, the project's own stacks built from them."""

import contextlib
import grp
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.base.errors import UserError
from harness.base.paths import CHECKOUT
from harness.environments.docker.build import ensure_cell_image
from harness.environments.docker.images import Image, find, tag_of_cell
from harness.environments.executors.container import WORK, Container, container_of
from harness.environments.executors.docker import LABEL, DockerExecutor
from harness.environments.executors.job import Exit, Handle, Job
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.faults.own_engine import OwnEngine, own_engine, why_no_own_engine
from harness.host.engine import Engine, find_engine
from harness.host.processes.run_processes import run_mark
from harness.matrix.cells import Matrix
from harness.matrix.load import Given, load_matrix
from harness.run.launch import base_variables
from tests.images.made_images import SERVED, removed_at_the_end
from tests.images.small_base import make_small_base

BASE = "vpoc-base:bookworm"
TRIXIE = "vpoc-base:trixie-python3-torch"
PRESETS = ("plain", "no-sdma", "notes-stable")
STACKS = ("cpu", "cpu-debian13-torch2.6.0")
MAIN = "from harness.cli.main import main; main()"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)
            # The SDK leaves the socket of a stream that nobody read to its end to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        found, why = find_engine(), "no Docker engine answers"
    except UserError as error:
        found, why = None, str(error)
    if found is None:
        _not_here(why)
    return found


def _not_here(why: str) -> NoReturn:
    if os.environ.get("REQUIRE_DOCKER"):
        pytest.fail(f"{why}, and REQUIRE_DOCKER is set")
    pytest.skip(why)


@pytest.fixture(autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test learns of GPUs from another one, or tells the user's harnesses of any."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True, scope="session")
def _containers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The commands use containers and the base made here; after all tests no container of a run is left."""
    with pytest.MonkeyPatch.context() as patch:
        # Fixtures that serve several tests come before `_state_of_its_own`.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("MATRIX_EXECUTOR", "docker")
        patch.setenv("MATRIX_BASE", BASE)
        yield

    def left() -> list[str]:
        containers = engine.client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
        return [f"{container.name} {container.status} {container.labels}" for container in containers]

    # Other tests may run beside these, and have containers for a moment. Those of a command that a test killed go with
    # the next command.
    until = time.monotonic() + 240
    while containers := left():
        assert time.monotonic() < until, containers
        time.sleep(1)
        DockerExecutor(engine, CHECKOUT).remove_leftovers(lambda _: None)


@pytest.fixture(autouse=True, scope="session")
def _images(engine: Engine) -> Iterator[None]:
    """The engine has the images afterwards that it had before, and the base images, which are dear to make."""
    with removed_at_the_end(engine):
        yield


@pytest.fixture(scope="session")
def bases(engine: Engine) -> tuple[str, str]:
    """The base images, made where they are missing."""
    for name, words in ((BASE, ("bookworm",)), (TRIXIE, ("trixie", "python3-torch"))):
        if find(engine, name) is None:
            subprocess.run([CHECKOUT / "images" / "base.sh", *words], check=True)
    return BASE, TRIXIE


@pytest.fixture(scope="session")
def matrix(bases: tuple[str, str]) -> Matrix:
    return load_matrix(CHECKOUT / "matrix.yaml", Given(bases[0]))


@pytest.fixture(scope="session")
def images(engine: Engine, matrix: Matrix) -> dict[str, Image]:
    """Two stacks with three presets each, really built."""
    cells = [f"{stack}-{preset}" for stack in STACKS for preset in PRESETS]
    return {cell: ensure_cell_image(engine, matrix.cells[cell], print) for cell in cells}


@pytest.fixture(scope="session")
def small_base(engine: Engine, bases: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base on which the images of `cpu` are small, and hold a stand-in for the app."""
    return make_small_base(engine, bases[0], tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_images(engine: Engine, small_base: str) -> dict[str, Image]:
    """Images on that base, for tests to which it does not matter what is in an image."""
    cells = load_matrix(CHECKOUT / "matrix.yaml", Given(small_base)).cells
    made = {cell: ensure_cell_image(engine, cells[cell]) for cell in ("cpu-plain", "cpu-no-sdma")}
    for cell, image in made.items():
        # An engine deletes an image with its last tag, and the cell's is moved to the other image of the cell.
        engine.client.api.tag(image.id, small_base, cell)
    return made


@pytest.fixture(autouse=True)
def _tagged(engine: Engine, request: pytest.FixtureRequest) -> None:
    """A cell has one tag, on whichever base: the tags are those of the images that a test names."""
    for name in ("small_images", "images"):
        made = request.getfixturevalue(name) if name in request.fixturenames else {}
        for cell, image in made.items():
            engine.client.api.tag(image.id, *tag_of_cell(cell).split(":"))


@pytest.fixture(scope="module")
def on_small_base(small_base: str) -> Iterator[None]:
    """The commands of a module use that base."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATRIX_BASE", small_base)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as the harness makes one."""
    made = tmp_path / "runs" / "mine"
    made.mkdir(parents=True)
    RunFolder(made).make_places()
    return made


@pytest.fixture
def container(images: dict[str, Image], folder: Path, tmp_path: Path) -> Container:
    """What limits a container of the caller's, with one file to read."""
    data = tmp_path / "data.csv"
    data.write_text("not to be changed\n", encoding="utf-8")
    return container_of(images["cpu-plain"].id, Path(RunFolder(folder).new_work.path), (data,), 2 << 30)


Start = Callable[..., Handle]


@pytest.fixture
def start(engine: Engine, folder: Path, container: Container) -> Iterator[Start]:
    """Starts Python code in a container as a run's process would be; nothing is left of it."""
    executor = DockerExecutor(engine, folder.parent)

    def start(code: str, container: Container = container, **variables: str) -> Handle:
        work = WorkFolder(WORK)
        environment = {**base_variables(work, work.temporary, 1), "PATH": "/opt/venv/bin:/usr/bin:/bin", **variables}
        arguments = ("/opt/venv/bin/python", "-c", code)
        log = folder / "log.txt"
        return executor.start(
            Job(arguments, environment, folder, log, container, RunFolder(folder).note_of(log, contained=True))
        )

    yield start
    for left in engine.client.containers.list(all=True, filters={"label": f"{LABEL}={run_mark(folder)}"}):
        left.remove(force=True)


@pytest.fixture
def run_code(start: Start, folder: Path) -> Callable[..., tuple[Exit, str]]:
    """Runs Python code in such a container to its end; how it ended, and its output."""

    def run(code: str, **options: object) -> tuple[Exit, str]:
        handle = start(code, **options)
        return wait_for(handle), (folder / "log.txt").read_text(encoding="utf-8")

    return run


def wait_for(handle: Handle, seconds: float = 120) -> Exit:
    """Wait for the end of a job, or fail."""
    until = time.monotonic() + seconds
    while (exit_ := handle.poll()) is None:
        assert time.monotonic() < until, "still running"
        time.sleep(0.05)
    return exit_


def wait_until(condition: Callable[[], object], seconds: float = 240) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def small_engine(private_engine: OwnEngine) -> Callable[[int], Engine]:
    """Starts an engine whose images have only so many bytes of room."""

    def start(size: int) -> Engine:
        private_engine.data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", private_engine.data], check=True)
        return private_engine.start()

    return start


@pytest.fixture
def private_engine() -> Iterator[OwnEngine]:
    """An engine of the test's own, without images, on the disk."""
    if why := why_no_own_engine():
        _not_here(why)
    with own_engine() as engine:
        yield engine


@pytest.fixture
def ordinary() -> Iterator[Any]:
    """A checkout and virtual environment of uid 54321; gives the prefix that runs a command as that user."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become another user")
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("there is no Python that every user may use")
    home = Path("/tmp") / f"vpoc-ordinary-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    copy = shutil.ignore_patterns(".venv", ".cache", "results", ".git", "*_cache")
    shutil.copytree(CHECKOUT, home, ignore=copy)
    uv = str(CHECKOUT / ".venv/bin/uv")
    subprocess.run([uv, "--no-config", "venv", "--quiet", "--python", python, home / ".venv"], check=True)
    locked: list[str | Path] = [
        "--python",
        home / ".venv/bin/python",
        "--quiet",
        "--require-hashes",
        home / "requirements.txt",
    ]
    subprocess.run([uv, "pip", "sync", *locked], check=True)
    subprocess.run(["chown", "-R", "54321:54321", home], check=True)

    def command(*words: str, group: str | None) -> list[str]:
        """The command `matrix` as that user."""
        groups = ["--groups", str(grp.getgrnam(group).gr_gid)] if group else ["--clear-groups"]
        become = ["setpriv", "--reuid", "54321", "--regid", "54321", *groups, "--no-new-privs"]
        matrix = [str(home / ".venv/bin/python"), "-c", MAIN, "--results", str(home / "results")]
        bare = [
            "env",
            "-i",
            f"HOME={home}",
            "PATH=/usr/local/bin:/usr/bin:/bin",
            f"MATRIX_BASE={os.environ['MATRIX_BASE']}",
            *(f"{name}={os.environ[name]}" for name in ("DOCKER_HOST",) if os.environ.get(name)),
        ]
        return [*become, *bare, "sh", "-c", f'cd {home} && exec "$@"', "sh", *matrix, *words]

    command.home = home  # type: ignore[attr-defined]
    yield command
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def registry_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the registry keeps what it has; another one that is given it has the same."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def registry(registry_storage: Path) -> Iterator[str]:
    """Debian's registry on loopback, empty."""
    with serve_registry(registry_storage, registry_storage / "settings.yml") as (host, _):
        yield host


@contextlib.contextmanager
def serve_registry(
    storage: Path, settings: Path, more: str = "", address: str = "127.0.0.1", http: str = ""
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A registry, and its process; `more` are lines for the file of its settings, `http` words for that part of it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (Debian: apt install docker-registry)")
    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    filesystem = f"storage: {{filesystem: {{rootdirectory: {storage}/data}}}}\n"
    settings.write_text(f"version: 0.1\n{filesystem}http: {{addr: {address}:{port}, {http}}}\n{more}", encoding="utf-8")
    with settings.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([program, "serve", str(settings)], stdout=log, stderr=log)

    def up() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex((address, port)) == 0

    SERVED.add(f"{address}:{port}")
    try:
        wait_until(up, 60)
        yield f"{address}:{port}", process
    finally:
        process.terminate()
        process.wait()
