"""Tests of fetching wheels from a real index on loopback that breaks off in the middle."""

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from harness.base.errors import UserError
from harness.environments.python import wheelhouse
from harness.environments.python.wheelhouse import fetch, read_lock, requirement
from harness.matrix import stacks
from harness.matrix.stacks import Stack

BYTES = 1 << 20


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel of one megabyte."""
    file = tmp_path / "index" / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    file.parent.mkdir()
    with ZipFile(file, "w") as archive:
        archive.writestr("torch/__init__.py", "x" * BYTES)
        archive.writestr(
            "torch-2.13.0+cpu.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"
        )
        archive.writestr(
            "torch-2.13.0+cpu.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\n"
        )
        archive.writestr("torch-2.13.0+cpu.dist-info/RECORD", "")
    return file


class Index(ThreadingHTTPServer):
    """A package index.

    - `breaks`: how many more downloads of the wheel it breaks off.
    - `closed`: it asks for a password.
    """

    def __init__(self, wheel: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.wheel = wheel
        self.breaks = 0
        self.closed = False
        self.ranges: list[str | None] = []


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        index: Any = self.server
        if index.closed:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=wheels")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.endswith(".whl"):
            content, wanted = index.wheel.read_bytes(), self.headers.get("Range")
            index.ranges.append(wanted)
            start = int(re.sub(r"\D", "", wanted)) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", '"1"')
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if index.breaks:
                index.breaks -= 1
                self.wfile.write(content[start : start + len(content) // 3])
                self.close_connection = True
                return
            self.wfile.write(content[start:])
            return
        name = index.wheel.name.replace("+", "%2B")
        page = f'<!DOCTYPE html><a href="/{name}">{index.wheel.name}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@pytest.fixture
def index(wheel: Path) -> Iterator[Index]:
    server = Index(wheel)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def stack(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """Return a stack whose wheels come from that index alone, and use a wheelhouse of the test's own."""
    url = f"http://127.0.0.1:{index.server_address[1]}"
    monkeypatch.setattr(stacks, "index_url", lambda *_: url)
    monkeypatch.setattr(wheelhouse, "WHEELS", tmp_path / "wheels")
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "1")
    return Stack(name="cpu", accelerator="cpu", torch="2.13.0")


@pytest.fixture
def lock(wheel: Path, tmp_path: Path) -> Path:
    file = tmp_path / "cpu.txt"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    file.write_text(
        f"torch==2.13.0+cpu \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digest}\n", encoding="utf-8"
    )
    return file


@pytest.mark.slow
def test_a_fetch_goes_on_where_the_connection_broke(index: Index, stack: Stack, lock: Path, wheel: Path) -> None:
    index.breaks = 2
    told: list[str] = []
    fetched = fetch(stack, lock, told.append)
    assert fetched["torch"].read_bytes() == wheel.read_bytes()
    assert told == ["fetching torch 2.13.0+cpu"]
    assert index.ranges[0] is None
    starts = [int(re.sub(r"\D", "", wanted)) for wanted in index.ranges[1:] if wanted]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1]


def test_what_is_in_the_wheelhouse_is_not_fetched_again(index: Index, stack: Stack, lock: Path) -> None:
    fetch(stack, lock)
    before = len(index.ranges)
    fetch(stack, lock)
    assert len(index.ranges) == before


@pytest.mark.slow
def test_a_damaged_wheel_is_fetched_again(index: Index, stack: Stack, lock: Path, wheel: Path) -> None:
    kept = fetch(stack, lock)["torch"]
    kept.write_bytes(kept.read_bytes()[:-1])
    assert fetch(stack, lock)["torch"].read_bytes() == wheel.read_bytes()


def test_a_wheel_with_another_hash_is_refused(index: Index, stack: Stack, lock: Path) -> None:
    lock.write_text(re.sub(r"sha256:(?!0{64})\w+", "sha256:" + "1" * 64, lock.read_text()), encoding="utf-8")
    with pytest.raises(UserError, match=r"torch 2\.13\.0\+cpu cannot be fetched: .*HASH") as caught:
        fetch(stack, lock)
    assert "\n" not in str(caught.value)
    assert [file.name for file in (lock.parent / "wheels").iterdir()] == [".lock"]


@pytest.mark.slow
def test_an_index_that_wants_a_password_is_not_waited_for(index: Index, stack: Stack, lock: Path) -> None:
    index.closed = True
    with pytest.raises(UserError, match=r"stack cpu: torch 2\.13\.0\+cpu cannot be fetched: ERROR: ") as caught:
        fetch(stack, lock)
    assert "Traceback" not in str(caught.value)


def test_what_a_killed_fetch_left_is_removed(stack: Stack, lock: Path, wheel: Path) -> None:
    left = lock.parent / "wheels" / ".fetch-killed"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x")
    fetch(stack, lock)
    assert not left.exists()


def test_a_folder_of_the_users_is_enough(
    stack: Stack, lock: Path, wheel: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(wheel.parent))
    # Sorts before the wheel, and is for the same Python.
    os.mkfifo(wheel.with_name(wheel.name.replace("cp311-many", "abi3-many")))
    assert fetch(stack, lock) == {"torch": wheel}
    assert index.ranges == []


def test_a_wheel_that_is_replaced_after_its_hash_was_checked_is_not_put_into_the_lock(lock: Path, wheel: Path) -> None:
    (entry,) = read_lock(lock)
    wheel.write_bytes(b"another")
    assert requirement(entry, wheel) == entry.text


def test_a_lock_with_a_line_that_would_be_left_out_is_refused(lock: Path) -> None:
    for line in ("uvicorn[standard]==1.0 --hash=sha256:" + "0" * 64, "vpoc @ file:///x.whl", "numpy==2.0"):
        lock.write_text(f"# a comment\n{line}\n", encoding="utf-8")
        with pytest.raises(UserError, match="resolve it again"):
            read_lock(lock)


def test_a_lock_is_read_with_all_its_hashes(lock: Path) -> None:
    (entry,) = read_lock(lock)
    assert (entry.name, entry.version, len(entry.hashes)) == ("torch", "2.13.0+cpu", 2)
    names = [e.name for e in read_lock(Path("images/locks/cpu.txt"))]
    assert len(names) == len(set(names)) == 24
    assert "typing-extensions" in names


@pytest.mark.slow
def test_a_wheel_for_another_python_is_not_taken_though_its_hash_is_in_the_lock(
    stack: Stack, lock: Path, wheel: Path
) -> None:
    other = wheel.with_name(wheel.name.replace("cp311", "cp312"))
    other.write_bytes(wheel.read_bytes() + b"\0")
    digest = hashlib.sha256(other.read_bytes()).hexdigest()
    lock.write_text(lock.read_text().rstrip() + f" \\\n    --hash=sha256:{digest}\n", encoding="utf-8")
    kept = lock.parent / "wheels"
    kept.mkdir()
    (kept / other.name).write_bytes(other.read_bytes())
    assert fetch(stack, lock)["torch"].name == wheel.name


@pytest.mark.slow
def test_what_came_before_a_failure_is_kept(index: Index, stack: Stack, lock: Path) -> None:
    lock.write_text(lock.read_text() + f"absent==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    told: list[str] = []
    with pytest.raises(UserError, match=r"absent 1\.0 cannot be fetched"):
        fetch(stack, lock, told.append)
    assert told == ["fetching torch 2.13.0+cpu", "fetching absent 1.0"]
    assert sorted(file.name for file in (lock.parent / "wheels").iterdir()) == [".lock", index.wheel.name]
