"""Fixtures with a real Docker engine, base images made of Debian's packages, and the project's stacks on them."""

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
from harness.base.files.locks import locked
from harness.base.paths import CACHE, CHECKOUT
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
            # The SDK leaves the socket of a stream that was not read to its end to the garbage collector.
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
    """Give each test a state folder, so that it shares no facts on GPUs with other tests or the user's harnesses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(autouse=True, scope="session")
def _containers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the commands use containers and the base made here; after all tests, no container of a run may be left."""
    with pytest.MonkeyPatch.context() as patch:
        # Session fixtures are set up before `_state_of_its_own`, so they need a state folder here.
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("MATRIX_EXECUTOR", "docker")
        patch.setenv("MATRIX_BASE", BASE)
        yield

    def left() -> list[str]:
        containers = engine.client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
        return [f"{container.name} {container.status} {container.labels}" for container in containers]

    # Other tests that run at the same time may have containers for a moment. Containers of a command that a test killed
    # are removed by the next command.
    until = time.monotonic() + 240
    while containers := left():
        assert time.monotonic() < until, containers
        time.sleep(1)
        DockerExecutor(engine, CHECKOUT).remove_leftovers(lambda _: None)


@pytest.fixture(autouse=True, scope="session")
def _images(engine: Engine) -> Iterator[None]:
    """Restore the engine's images after the tests, except for the base images, which take long to make."""
    with removed_at_the_end(engine):
        yield


@pytest.fixture(scope="session")
def bases(engine: Engine) -> tuple[str, str]:
    """Return the base images, which are made if they are missing."""
    # The tests in `apart` run at the same time.
    with locked(CACHE / "test-bases.lock"):
        for name, words in ((BASE, ("bookworm",)), (TRIXIE, ("trixie", "python3-torch"))):
            if find(engine, name) is None:
                subprocess.run([CHECKOUT / "images" / "base.sh", *words], check=True)
    return BASE, TRIXIE


@pytest.fixture(scope="session")
def matrix(bases: tuple[str, str]) -> Matrix:
    return load_matrix(CHECKOUT / "matrix.yaml", Given(bases[0]))


@pytest.fixture(scope="session")
def images(engine: Engine, matrix: Matrix) -> dict[str, Image]:
    """Build two stacks with three presets each."""
    cells = [f"{stack}-{preset}" for stack in STACKS for preset in PRESETS]
    return {cell: ensure_cell_image(engine, matrix.cells[cell], print) for cell in cells}


@pytest.fixture(scope="session")
def small_base(engine: Engine, bases: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a base on which the images of `cpu` are small and contain a stand-in for the app."""
    return make_small_base(engine, bases[0], tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_images(engine: Engine, small_base: str) -> dict[str, Image]:
    """Return images on that base, for tests that do not depend on the content of an image."""
    cells = load_matrix(CHECKOUT / "matrix.yaml", Given(small_base)).cells
    made = {cell: ensure_cell_image(engine, cells[cell]) for cell in ("cpu-plain", "cpu-no-sdma")}
    for cell, image in made.items():
        # An engine deletes an image with its last tag, and the cell's tag moves to the cell's other image.
        engine.client.api.tag(image.id, small_base, cell)
    return made


@pytest.fixture(autouse=True)
def _tagged(engine: Engine, request: pytest.FixtureRequest) -> None:
    """Move the tags of cells to the images that a test names, because a cell has one tag, whatever its base."""
    for name in ("small_images", "images"):
        made = request.getfixturevalue(name) if name in request.fixturenames else {}
        for cell, image in made.items():
            engine.client.api.tag(image.id, *tag_of_cell(cell).split(":"))


@pytest.fixture(scope="module")
def on_small_base(small_base: str) -> Iterator[None]:
    """Make the commands of a module use that base."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATRIX_BASE", small_base)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a run folder as the harness makes one."""
    made = tmp_path / "runs" / "mine"
    made.mkdir(parents=True)
    RunFolder(made).make_places()
    yield made
    RunFolder(made).remove_places(all_of_it=False)


@pytest.fixture
def container(images: dict[str, Image], folder: Path, tmp_path: Path) -> Container:
    """Return the limits of a container that runs as the caller, with one file that the container may read."""
    data = tmp_path / "data.csv"
    data.write_text("not to be changed\n", encoding="utf-8")
    return container_of(images["cpu-plain"].id, Path(RunFolder(folder).new_work.path), (data,), 2 << 30)


Start = Callable[..., Handle]


@pytest.fixture
def start(engine: Engine, folder: Path, container: Container) -> Iterator[Start]:
    """Yield a function that starts Python code in a container like a run's process; the containers are removed."""
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
    """Return a function that runs Python code in such a container and returns how it ended and its output."""

    def run(code: str, **options: object) -> tuple[Exit, str]:
        handle = start(code, **options)
        return wait_for(handle), (folder / "log.txt").read_text(encoding="utf-8")

    return run


def wait_for(handle: Handle, seconds: float = 120) -> Exit:
    """Wait for the end of a job, or fail after `seconds`."""
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
    """Return a function that starts an engine whose images have only `size` bytes of space."""

    def start(size: int) -> Engine:
        private_engine.data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", private_engine.data], check=True)
        return private_engine.start()

    return start


@pytest.fixture
def private_engine() -> Iterator[OwnEngine]:
    """Yield an engine that only this test uses, without images, with its data on the disk."""
    if why := why_no_own_engine():
        _not_here(why)
    with own_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def ordinary() -> Iterator[Any]:
    """Make a checkout and a virtual environment of uid 54321; yield a function that makes commands of that user."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become another user")
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("there is no Python that every user may use")
    home = Path("/tmp") / f"vpoc-ordinary-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    copy = shutil.ignore_patterns(".venv", ".cache", "results", ".git", "*_cache")
    shutil.copytree(CHECKOUT, home, ignore=copy)
    for fetched in ("wheels", "kernels"):
        # The folder may be missing, because nothing is fetched when the engine already has the images.
        if (place := CHECKOUT / ".cache" / fetched).is_dir():
            shutil.copytree(place, home / ".cache" / fetched)
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
        """Return the command line of `matrix` as that user."""
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
    """Return the registry's storage folder; a second registry with this folder has the same content."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="session")
def registry(registry_storage: Path) -> Iterator[str]:
    """Yield the address of an empty registry, Debian's, on loopback."""
    with serve_registry(registry_storage, registry_storage / "settings.yml") as (host, _):
        yield host


@contextlib.contextmanager
def serve_registry(
    storage: Path, settings: Path, more: str = "", address: str = "127.0.0.1", http: str = ""
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield a registry's address and process.

    `more`: lines to add to the settings file.
    `http`: words to add to the settings' `http` part.
    """
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
