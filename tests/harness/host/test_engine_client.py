"""Tests of the bounds on an engine's answers, most of which the authors of images write, with a simulated engine."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from harness.base.errors import UserError
from harness.environments.docker import own_images
from harness.environments.docker.images import INPUTS, find
from harness.environments.docker.own_images import find_by_labels
from harness.host import engine_client
from harness.host.engine import Engine
from harness.host.engine_client import Client, TooLargeAnswerError


def told(name: str, size: int) -> dict[str, object]:
    triggers = ["RUN sleep infinity"] if name == "triggers" else None
    labels = {"a": "x" * size, INPUTS: "0" * 64}
    return {"Id": name, "Config": {"Labels": labels, "OnBuild": triggers}, "RootFS": {}, "Size": 1}


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.split("/")[-2]
        status, answer = 200, told(name, 10)
        if name == "gone":
            status, answer = 404, {"message": "No such image: gone"}
        elif name == "large":
            answer = told(name, 1000)
        elif "many" in self.path:
            answer = [{"Id": f"sha256:{n:064x}", "Labels": {"a": "b" * 100}} for n in range(10)]  # type: ignore[assignment]
        elif "of-one" in self.path:
            large = [(1, "b"), (2, '"Id":"sha256:' + "0" * 1000), (3, "b")]
            answer = [{"Id": f"sha256:{n:064x}", "Labels": {"a": label}} for n, label in large]  # type: ignore[assignment]
        elif "images/json" in self.path:
            names = ("older", "small", "large", "triggers")
            answer = [{"Id": name, "Created": at} for at, name in enumerate(names)]  # type: ignore[assignment]
        content = json.dumps(answer, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Return an engine that has an image with labels above the limit, which is 500 bytes here."""
    monkeypatch.setattr(engine_client, "LARGEST_IMAGE", 500)
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        address = f"tcp://127.0.0.1:{server.server_address[1]}"
        client = Client(base_url=address, version="1.41")
        yield Engine(address, client)
        client.api.close()
        server.shutdown()


def test_an_image_with_labels_of_that_size_or_triggers_is_passed_over(engine: Engine) -> None:
    small = find(engine, "small")
    assert small is not None
    assert small.labels["a"] == "x" * 10
    assert find(engine, "gone") is None
    with pytest.raises(ImageNotFound):
        engine.client.api.inspect_image("gone")
    with pytest.raises(UserError, match=re.escape("image large has labels or variables of more than 500 bytes")):
        find(engine, "large")
    assert find_by_labels(engine, {"a": "b"}) == small


@pytest.mark.parametrize("name", ["", ".", "/", "../containers/small"])
def test_a_name_that_would_be_another_question_to_the_engine_is_no_image(engine: Engine, name: str) -> None:
    assert find(engine, name) is None


def test_of_images_with_the_same_labels_the_newest_is_found_but_before_it_one_that_was_built_here(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_images, "OWN_IMAGES", tmp_path / "own.txt")
    small, older = find(engine, "small"), find(engine, "older")
    assert find_by_labels(engine, {"a": "b"}) == small
    assert older
    own_images.remember(older, on_others=True)
    assert find_by_labels(engine, {"a": "b"}) == small
    assert not own_images.is_own(older.id)
    assert own_images.own_ids() == {older.id}
    own_images.remember(older)
    assert find_by_labels(engine, {"a": "b"}) == older
    assert own_images.is_own(older.id)


def test_of_any_answer_no_more_is_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(engine.client.api.inspect_container("large")["Config"]["Labels"]["a"]) == 1000
    monkeypatch.setattr(engine_client, "LARGEST_ANSWER", 900)
    with pytest.raises(TooLargeAnswerError, match="more than 900 bytes"):
        engine.client.api.inspect_container("large")


def test_one_image_with_much_to_tell_is_passed_over_in_lists_and_named_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_client, "LARGEST_ANSWER", 900)
    for _ in range(2):
        assert [found["Labels"]["a"] for found in engine.client.api.images("of-one")] == ["b", "b"]
    (said,) = caplog.messages
    assert said.startswith(f"matrix: sha256:{2:064x} is skipped: it has more than 500 bytes")
    assert f"`docker image rm sha256:{2:064x}`" in said


def test_of_many_that_are_too_much_together_the_error_says_what_to_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "LARGEST_ANSWER", 900)
    with pytest.raises(TooLargeAnswerError, match="`docker image prune`"):
        engine.client.api.images("many")
