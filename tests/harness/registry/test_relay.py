import json
import socket
import struct
from collections.abc import Iterator
from threading import Event
from urllib.parse import urlsplit

import pytest

from harness.base.errors import UserError
from harness.registry.oci import IMAGE_MANIFEST, LARGEST_CONFIGURATION, Manifest, Repository
from harness.registry.relay import Relay, _Server
from tests.harness.fake_registry import FakeRegistry


@pytest.fixture
def relay() -> Iterator[tuple[Relay, str]]:
    """Serve a relay; yield it with the name under which the engine reaches it."""
    fake = FakeRegistry(blobs={})
    with fake.serving():
        made = Relay(f"{fake.host}/vpoc", "pulling", lambda _: None)
        with made.serving() as here:
            yield made, here


def answer(here: str, path: str) -> bytes:
    """Return the first line of the answer to a request for `path`, which is sent without normalising it."""
    place = urlsplit(f"http://{here}")
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return connection.recv(1 << 16).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "path", ["manifests/latest", "/v2/matrix-0/vpoc/manifests/latest", "manifests/../../../other/manifests/latest", "/"]
)
def test_whoever_does_not_know_the_name_gets_nothing_and_stops_nothing(relay: tuple[Relay, str], path: str) -> None:
    made, here = relay
    assert b" 404 " in answer(here, path)
    assert (made.asked, made.problem) == (False, None)


def test_a_connection_that_is_cut_between_two_requests_is_no_traceback(
    relay: tuple[Relay, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = Event()
    shut = _Server.shutdown_request

    def noting(own: _Server, request: socket.socket) -> None:
        shut(own, request)
        handled.set()

    monkeypatch.setattr(_Server, "shutdown_request", noting)
    place = urlsplit(f"http://{relay[1]}")
    with socket.create_connection((place.hostname, place.port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1 << 16)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert handled.wait(60)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["latest", "../../other/manifests/latest", "sha256:short"])
def test_only_digests_are_asked_for(relay: tuple[Relay, str], name: str) -> None:
    made, here = relay
    assert b" 404 " in answer(here, f"/v2/{made.path}/manifests/{name}")
    assert b" 200 " in answer(here, "/v2/")
    assert made.problem is None


def test_an_image_with_larger_labels_than_an_engine_handles_is_not_brought(relay: tuple[Relay, str]) -> None:
    made, here = relay
    repository = Repository(made._repository.name)
    config = {"digest": f"sha256:{'c' * 64}", "size": LARGEST_CONFIGURATION + 1}
    image = Manifest(json.dumps({"schemaVersion": 2, "config": config, "layers": []}).encode(), IMAGE_MANIFEST)
    repository.put_manifest("latest", image)
    with pytest.raises(UserError, match=r"labels of the image take 262145 bytes"):
        made.manifest("latest")
    assert b" 403 " in answer(here, f"/v2/{made.path}/manifests/{image.digest}")
    assert made.problem is not None
    odd = json.dumps({"schemaVersion": 2, "config": {**config, "size": "large"}, "layers": []}).encode()
    repository.put_manifest("odd", Manifest(odd, IMAGE_MANIFEST))
    assert made.manifest("odd")
