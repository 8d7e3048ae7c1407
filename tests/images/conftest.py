"""A real Docker engine, base images from Debian's packages, the project's own stacks built from them."""

import contextlib
import grp
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from harness.build import ensure_cell_image
from harness.containers import Container, container_of
from harness.engine import Engine, find_engine
from harness.errors import UserError
from harness.executors import Exit, Handle, Job
from harness.executors.docker import LABEL, DockerExecutor
from harness.images import Image, find
from harness.job_environment import base_variables, make_scratch, view_of
from harness.matrix import Matrix
from harness.matrix_file import load_matrix
from harness.paths import CHECKOUT
from harness.processes import run_mark

BASE = "vpoc-base:bookworm"
TRIXIE = "vpoc-base:trixie-python3-torch"
PRESETS = ("plain", "no-sdma", "notes-stable")
STACKS = ("cpu", "cpu-debian13-torch2.6.0")
MAIN = "from harness.cli import main; main()"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        found, why = find_engine(), "no Docker engine answers"
    except UserError as error:
        found, why = None, str(error)
    if found is None:
        if os.environ.get("REQUIRE_DOCKER"):
            pytest.fail(f"{why}, and REQUIRE_DOCKER is set")
        pytest.skip(why)
    return found


@pytest.fixture(autouse=True, scope="session")
def _containers(engine: Engine) -> Iterator[None]:
    """The commands use containers and the base made here; after all tests no container of a run is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATRIX_EXECUTOR", "docker")
        patch.setenv("MATRIX_BASE", BASE)
        yield
    assert engine.client.containers.list(all=True, filters={"label": LABEL}) == []


@pytest.fixture(scope="session")
def bases(engine: Engine) -> tuple[str, str]:
    """The base images, made where they are missing."""
    for name, words in ((BASE, ("bookworm",)), (TRIXIE, ("trixie", "python3-torch"))):
        if find(engine, name) is None:
            subprocess.run([CHECKOUT / "images" / "base.sh", *words], check=True)
    return BASE, TRIXIE


@pytest.fixture(scope="session")
def matrix(bases: tuple[str, str]) -> Matrix:
    return load_matrix(CHECKOUT / "matrix.yaml", bases[0])


@pytest.fixture(scope="session")
def images(engine: Engine, matrix: Matrix) -> dict[str, Image]:
    """Two stacks with three presets each, really built."""
    cells = [f"{stack}-{preset}" for stack in STACKS for preset in PRESETS]
    return {cell: ensure_cell_image(engine, matrix.cells[cell], print) for cell in cells}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as the harness makes one."""
    made = tmp_path / "runs" / "mine"
    made.mkdir(parents=True)
    make_scratch(made)
    return made


@pytest.fixture
def container(images: dict[str, Image], folder: Path, tmp_path: Path) -> Container:
    """What limits a container of the caller's, with one file to read."""
    data = tmp_path / "data.csv"
    data.write_text("not to be changed\n", encoding="utf-8")
    return container_of(images["cpu-plain"].id, folder, (data,), 2 << 30)


Start = Callable[..., Handle]


@pytest.fixture
def start(engine: Engine, folder: Path, container: Container) -> Iterator[Start]:
    """Starts Python code in a container as a run's process would be; nothing is left of it."""
    executor = DockerExecutor(engine, folder.parent)

    def start(code: str, container: Container = container, **variables: str) -> Handle:
        view = view_of(folder, Path(container.data[0]), contained=True)
        environment = {**base_variables(view, 1), "PATH": "/opt/venv/bin:/usr/bin:/bin", **variables}
        arguments = ("/opt/venv/bin/python", "-c", code)
        return executor.start(Job(arguments, environment, folder, folder / "log.txt", container))

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


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


class PrivateEngine:
    """A second dockerd, with its own images. It shares the first one's bridge and never touches the host's network."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None
        # The path of a socket must be short.
        self.socket = Path("/tmp") / f"vpoc-test-{os.getpid()}-{folder.name}.sock"

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> Engine:
        words = ["--data-root", self._data, "--exec-root", self._folder / "exec", "--pidfile", self._folder / "pid"]
        network = ["--bridge", "docker0", "--iptables=false", "--ip6tables=false", "--ip-masq=false"]
        with (self._folder / "dockerd.log").open("ab") as log:
            command = ["dockerd", "--host", self.address, *network, *map(str, words)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(self._answers)
        return Engine(self.address, docker.DockerClient(base_url=self.address))

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(self.socket))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in connection.recv(1024)
        return False

    def kill(self) -> None:
        """As a crash would, without a word to anybody."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pid in _children(self._folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # As after a boot: a killed containerd that nobody reaped would count as one that still runs.
        (self._folder / "pid").unlink(missing_ok=True)
        shutil.rmtree(self._folder / "exec", ignore_errors=True)

    def stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)
        self.socket.unlink(missing_ok=True)


def _children(folder: Path) -> Iterator[int]:
    """containerd and what it started, told by the folder of this engine on their command lines."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder / "exec").encode() in (place / "cmdline").read_bytes():
                yield int(place.name)


@pytest.fixture
def small_engine() -> Iterator[Callable[[int], Engine]]:
    """Starts an engine whose images have only so many bytes of room."""
    with own_folder() as folder:
        data = folder / "data"
        data.mkdir()
        engine = PrivateEngine(folder, data)

        def start(size: int) -> Engine:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", data], check=True)
            return engine.start()

        yield start
        engine.stop()


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for an engine; what was mounted in it, also by one that was killed, is taken away with it."""
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("only root can start an engine of its own")
    folder = Path(tempfile.mkdtemp(prefix="vpoc-engine-"))
    yield folder
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(folder)


@pytest.fixture
def private_engine() -> Iterator[PrivateEngine]:
    """An engine of the test's own, without images, on the disk."""
    with own_folder() as folder:
        engine = PrivateEngine(folder, folder / "data")
        yield engine
        engine.stop()


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
        ]
        return [*become, *bare, "sh", "-c", f'cd {home} && exec "$@"', "sh", *matrix, *words]

    command.home = home  # type: ignore[attr-defined]
    yield command
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's registry on loopback, empty."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (Debian: apt install docker-registry)")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = (
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n"
    )
    (folder / "settings.yml").write_text(settings, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "settings.yml")], stdout=log, stderr=log)

    def up() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1).status == 200)
        return False

    wait_until(up, 20)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait()
