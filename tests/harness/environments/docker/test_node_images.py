"""Tests of bringing images to nodes, on a stand-in for the engine; tests/slurm uses a real one."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import InUseError, NoAnswerError, UserError
from harness.environments.docker import node_images
from harness.environments.docker.node_images import SILENT_SECONDS, NodeImage, _one_at_a_time, _silence, _transfer

WANTED = NodeImage(
    id=f"sha256:{'a' * 64}", labels={}, reference=f"127.0.0.1:1/vpoc@sha256:{'b' * 64}", remedy="`matrix push` it"
)
Answer = Callable[[socket.socket], None]


def no_folder(*_: object) -> list[bytes]:
    """Fail, because no image should be read from a folder of `matrix save`."""
    raise AssertionError


def _respond(connection: socket.socket, status: str, body: dict[str, str]) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)


def _refuse(connection: socket.socket) -> None:
    _respond(connection, "404 Not Found", {"message": "manifest unknown"})


def _be_cut_off(connection: socket.socket) -> None:
    _respond(connection, "500 No", {"message": "dial tcp 127.0.0.1:1: connect: connection refused"})


def _fall_silent(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.recv(1)


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Serve an engine that answers every request but for its version with the parametrized function."""
    answer: Answer = request.param
    place = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()

        def serve() -> None:
            try:
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        asked = connection.recv(1 << 16)
                        if b"/version" in asked.split(b"\r\n")[0]:
                            _respond(connection, "200 OK", {"ApiVersion": "1.41"})
                        else:
                            answer(connection)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SimpleNamespace(address=f"unix://{place}")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize("engine", [_fall_silent], indirect=True)
def test_a_pull_of_which_nothing_is_heard_is_abandoned(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_images, "SILENT_SECONDS", 0.2)
    with pytest.raises(UserError, match=r"gave no sign of .*; `matrix push` it"):
        _transfer(engine, WANTED, no_folder, lambda _: None)


def test_a_saved_image_may_take_as_long_as_it_is_large(tmp_path: Path) -> None:
    with (tmp_path / "layer").open("wb") as stream:
        stream.truncate(10**10)
    saved = WANTED.model_copy(update={"archive": str(tmp_path), "reference": None})
    assert (_silence(WANTED), _silence(saved)) == (SILENT_SECONDS, SILENT_SECONDS + 500)
    assert _silence(saved.model_copy(update={"archive": str(tmp_path / "none")})) == SILENT_SECONDS


@pytest.mark.parametrize("engine", [_be_cut_off], indirect=True)
def test_a_registry_that_is_away_is_still_told_by_its_kind(engine: Any) -> None:
    with pytest.raises(NoAnswerError, match=r"connection refused; `matrix push` it"):
        _transfer(engine, WANTED, no_folder, lambda _: None)


def test_a_lock_that_is_never_freed_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_images, "LOCKED_SECONDS", 0.0)
    file = tmp_path / "lock"
    with (
        _one_at_a_time(file, pytest.fail),
        pytest.raises(InUseError, match=rf"`fuser {file}`"),
        _one_at_a_time(file, pytest.fail),
    ):
        pytest.fail("two at a time")


@pytest.mark.parametrize("engine", [_refuse], indirect=True)
def test_what_the_engine_answers_is_reported(engine: Any) -> None:
    with pytest.raises(UserError, match=r"manifest unknown.*; `matrix push` it"):
        _transfer(engine, WANTED, no_folder, lambda _: None)
