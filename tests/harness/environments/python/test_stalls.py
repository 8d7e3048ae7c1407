"""Indexes on loopback that send a byte now and then, and what does something meanwhile."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from harness.base.errors import NoAnswerError
from harness.environments.python import stalls, uv_process, wheelhouse
from harness.environments.python.pip_process import pip_process
from harness.environments.python.stalls import ProcessWork, StallWatch
from harness.matrix.stacks import Stack

NAME = "pkg-1.0-py3-none-any.whl"
DOES_NOTHING = (
    r"one page takes more than \d+ s, or a file comes with fewer than 500 bytes a second; the same command .*"
)


class Drips(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._begin(len(self._index.wheel))

    def do_GET(self) -> None:
        if not self.path.endswith(".whl"):
            page = f'<!DOCTYPE html><a href="/{NAME}">{NAME}</a>'.encode()
            self._begin(len(page))
            self.wfile.write(page)
            return
        self._begin(len(self._index.wheel))
        with suppress(OSError):
            for place in range(len(self._index.wheel)):
                self.wfile.write(self._index.wheel[place : place + 1])
                if self._index.ended.wait(0.05):
                    return

    @property
    def _index(self) -> Any:
        return self.server

    def _begin(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(size))
        self.end_headers()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The lock of a package that an index sends in drops; its name is the index's address."""
    with ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
        archive.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("pkg-1.0.dist-info/RECORD", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Drips)
    server.wheel, server.ended = (tmp_path / NAME).read_bytes(), threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    digest = hashlib.sha256((tmp_path / NAME).read_bytes()).hexdigest()
    file = tmp_path / "lock.txt"
    file.write_text(f"pkg==1.0 --hash=sha256:{digest}\n", encoding="ascii")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("INDEX", f"http://127.0.0.1:{server.server_port}")
    yield file
    server.ended.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def test_uv_does_not_wait_for_an_index_that_drips(lock: Path, tmp_path: Path) -> None:
    index = os.environ["INDEX"]
    install = ("pip", "install", "--quiet", "--no-cache", "--require-hashes", "--target", tmp_path / "there")
    address = index.replace("//", "//me:secret@")
    with pytest.raises(NoAnswerError, match=rf"^uv pip install from {index}: {DOES_NOTHING}$"):
        uv_process.uv(*install, "-r", lock, "--default-index", address, stalled_seconds=1)


def test_pip_does_not_wait_for_an_index_that_drips_and_has_another_process_then(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelhouse, "WHEELS", tmp_path / "wheels")
    (place := tmp_path / "place").mkdir()
    stack = Stack(name="cpu", accelerator="cpu", torch="2.13.0", mirror=os.environ["INDEX"])
    with pip_process(os.environ, stalled_seconds=1) as pip:
        where = rf"stack cpu: pkg 1\.0 cannot be fetched: .*{os.environ['INDEX']}\S*: pip download: {DOES_NOTHING}$"
        entry = wheelhouse.read_lock(lock)[0]
        with pytest.raises(NoAnswerError, match=where):
            wheelhouse._download(stack, entry, pip, place)
        assert pip(["--version"]) == (0, "")


WRITE = """
import sys, time
print(flush=True)
while True:
    open("/dev/null", "wb").write(b"x" * int(sys.argv[1]))
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("size", "stalls"), [(1000, False), (1, True)])
def test_who_gets_little_but_enough_goes_on(size: int, stalls: bool) -> None:
    command = ["/bin/sh", "-c", '"$@"; true', "sh", sys.executable, "-S", "-c", WRITE, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            assert _stalls(process.pid) is stalls
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _stalls(pid: int) -> bool:
    watch, until = StallWatch(pid, 0.5), time.monotonic() + 1
    try:
        while time.monotonic() < until:
            time.sleep(watch.look_seconds)
            watch.look("it")
    except NoAnswerError:
        return True
    return False


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterator[ProcessWork | None], float], StallWatch]:
    def watch(work: Iterator[ProcessWork | None], apart: float) -> StallWatch:
        monkeypatch.setattr(stalls, "time", SimpleNamespace(monotonic=count(0.0, apart).__next__))
        return StallWatch(1, 60, lambda _: next(work))

    return watch


@pytest.mark.parametrize(
    "work",
    [
        (ProcessWork(number * 600, 0, waits_for_disk=False) for number in count()),
        (ProcessWork(0, number * 0.06, waits_for_disk=False) for number in count()),
        (ProcessWork(0, 0, waits_for_disk=number % 10 == 0) for number in count()),
        (None for _ in count()),
    ],
    ids=["files", "CPU", "disk", "not told"],
)
def test_what_works_or_cannot_be_looked_at_goes_on(
    work: Iterator[ProcessWork | None], looks: Callable[..., Any]
) -> None:
    watch = looks(work, 1.0)
    for _ in range(200):
        watch.look("it")
    assert watch._looked > 3 * watch._seconds, "that is longer than it may stall"


def test_time_in_which_nobody_looked_does_not_count(looks: Callable[..., Any]) -> None:
    nothing = ProcessWork(0, 0, waits_for_disk=False)
    watch = looks(iter([nothing] * 100), 3600.0)
    for _ in range(29):
        watch.look("it")
    with pytest.raises(NoAnswerError, match="more than 60 s"):
        watch.look("it")
