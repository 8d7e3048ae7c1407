import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from requests import Response
from urllib3 import HTTPResponse

from harness.base.certificates import SYSTEM
from harness.base.errors import UserError
from harness.registry import connection
from harness.registry.connection import Connection
from harness.registry.oci import Repository
from tests.harness.fake_registry import BASIC, FakeRegistry
from tests.harness.stand_in_index import private_authority, served

KIND = "application/vnd.vpoc.test+json"
Keep = Callable[[dict[str, Any]], None]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Return a function that writes the docker command's configuration; other credentials on this host are wrong."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    netrc = tmp_path / ".netrc"
    netrc.write_text("default login somebody password elsewhere\n")
    netrc.chmod(0o600)

    def write(config: dict[str, Any]) -> None:
        (folder / "config.json").write_text(json.dumps(config))

    write({})
    return write


@pytest.fixture(params=["basic", "bearer"])
def closed(request: pytest.FixtureRequest, keep: Keep) -> Iterator[FakeRegistry]:
    """Serve a registry that asks for credentials before it is written to."""
    keep({})
    fake = FakeRegistry(authentication=request.param)
    with fake.serving():
        yield fake


def store(registry: FakeRegistry) -> bytes:
    """Write two tags, and return the content of the second as it is read back."""
    repository = Repository(f"{registry.host}/vpoc")
    for tag in ("one", "two"):
        assert repository.manifest(tag) is None
        repository.put_manifest(tag, repository.artifact(KIND, tag.encode(), {}, None))
    found = repository.manifest("two")
    assert found
    return repository.content(found)


def test_credentials_of_dockers_file_are_used(closed: FakeRegistry, keep: Keep) -> None:
    keep({"auths": {closed.host: {"auth": BASIC.removeprefix("Basic ")}}})
    assert store(closed) == b"two"


@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_credentials_of_dockers_helpers_are_used(
    key: str, closed: FakeRegistry, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-synthetic"
    secret = json.dumps({"ServerURL": closed.host, "Username": "somebody", "Secret": "secret"})
    helper.write_text(f"#!/bin/sh\n[ \"$(cat)\" = {closed.host} ] && echo '{secret}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    keep({"credHelpers": {closed.host: "synthetic"}} if key == "credHelpers" else {"credsStore": "synthetic"})
    assert store(closed) == b"two"


@pytest.mark.parametrize("password", [None, "wrong"])
def test_without_them_or_with_wrong_ones_it_is_one_line(password: str | None, closed: FakeRegistry, keep: Keep) -> None:
    if password:
        keep({"auths": {closed.host: {"auth": "c29tZWJvZHk6d3Jvbmc="}}})
    with pytest.raises(UserError, match=rf"refuses .*`docker login {closed.host}`") as refused:
        store(closed)
    assert "\n" not in str(refused.value)


def test_nothing_but_dockers_own_is_ever_sent(closed: FakeRegistry) -> None:
    with pytest.raises(UserError):
        store(closed)
    assert {given for _, _, given in closed.asked} <= {"", "Bearer pull"}


def test_who_is_redirected_to_gets_no_credentials_at_all(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, elsewhere = (
        FakeRegistry(authentication="basic", redirects_to="https://storage.example"),
        list[tuple[str, Any]](),
    )
    with registry.serving() as host:
        keep({"auths": {host: {"auth": BASIC.removeprefix("Basic ")}}})
        asking = Connection(host)
        request = asking._session.request

        def answered(method: str, url: str, **options: Any) -> Response:
            if url.startswith(f"http://{host}/"):
                return request(method, url, **options)
            elsewhere.append((url, options["headers"]))
            answer = Response()
            answer.status_code, answer.raw = 200, HTTPResponse(body=BytesIO(), preload_content=False)
            return answer

        monkeypatch.setattr(asking._session, "request", answered)
        assert asking.ask("GET", "").status_code == 200
    assert [given for _, _, given in registry.asked] == ["", BASIC]
    assert elsewhere == [("https://storage.example/v2/", {})]


def test_who_is_redirected_to_cannot_say_where_credentials_go(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry's own challenge was answered before; the next 401 is that of the host with the content."""
    registry, elsewhere = FakeRegistry(authentication="basic"), list[str]()
    with registry.serving() as host:
        keep({"auths": {host: {"auth": BASIC.removeprefix("Basic ")}}})
        asking = Connection(host)
        asking.ask("GET", "")
        registry.redirects_to = "https://storage.example"
        request = asking._session.request

        def answered(method: str, url: str, **options: Any) -> Response:
            if url.startswith(f"http://{host}/"):
                return request(method, url, **options)
            elsewhere.append(url)
            answer = Response()
            answer.status_code, answer.raw = 401, HTTPResponse(body=BytesIO(), preload_content=False)
            answer.headers["WWW-Authenticate"] = 'Bearer realm="https://storage.example/token"'
            return answer

        monkeypatch.setattr(asking._session, "request", answered)
        with pytest.raises(UserError, match=r"to 'https://storage\.example/v2/', which asks for credentials; none"):
            asking.ask("GET", "")
    assert elsewhere == ["https://storage.example/v2/"]


def test_the_words_of_a_registry_are_quoted() -> None:
    """They must not pass for our own advice."""
    head = b"HTTP/1.1 418 No\r\nContent-Length: 40\r\n\r\n"
    said = b"`matrix train --force` solves this.".ljust(40)
    with answering(b"", head=head + said) as host, pytest.raises(UserError, match=r": '`matrix train --force` solves "):
        Connection(host).ask("GET", "x")


def test_no_other_service_without_encryption_is_asked_as_a_registry_wants_it(keep: Keep) -> None:
    """A service without encryption may be meant for this host alone, such as one that listens on loopback."""
    keep({})
    service = FakeRegistry()
    with service.serving() as elsewhere, FakeRegistry().serving() as host:
        port = elsewhere.rpartition(":")[2]
        # In the last two, the HTTP client takes another part of the URL for the host than a simple parser does.
        for name in (elsewhere, f"localhost:{port}", f"{elsewhere}\\@{host}", f"{host}@{elsewhere}"):
            head = f"HTTP/1.1 307 Moved\r\nLocation: http://{name}/x\r\nContent-Length: 0\r\n\r\n".encode()
            with answering(b"", head=head) as moved, pytest.raises(UserError, match=rf"registry {moved} redirects to "):
                Connection(moved).ask("GET", "")
            # A registry also names the address of an upload.
            with pytest.raises(UserError, match=rf"registry {host} redirects to "):
                Connection(host).ask("PUT", f"http://{name}/x", data=b"x")
        with pytest.raises(UserError, match="without encryption; nothing was sent"):
            Connection(host)._authorize(f'Bearer realm="http://{elsewhere}/x"', "x")
    assert service.asked == []


def test_a_redirect_within_the_registry_keeps_them(keep: Keep) -> None:
    registry = FakeRegistry(authentication="basic")
    with registry.serving() as host:
        keep({"auths": {host: {"auth": BASIC.removeprefix("Basic ")}}})
        connection = Connection(host)
        connection.ask("GET", "")
        registry.redirects_to = f"http://{host}"
        with pytest.raises(UserError, match="redirects"):
            connection.ask("GET", "")
    assert {given for _, _, given in registry.asked[1:]} == {BASIC}


def test_a_proxy_of_the_environment_is_used(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep({})
    monkeypatch.setattr(connection, "_speaks_plain_http", lambda _: True)
    proxy = FakeRegistry()
    with proxy.serving() as host:
        monkeypatch.setenv("http_proxy", f"http://{host}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert Connection("registry.example").ask("GET", "").status_code == 200
    assert proxy.asked == [("GET", "/v2/", "")]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_no_proxy_is_used_for_loopback(name: str, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would get the credentials, and loopback is another host there."""
    for variable in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    registry = FakeRegistry()
    with registry.serving() as host:
        assert Connection(host.replace("127.0.0.1", name)).ask("GET", "").status_code == 200


def test_a_helper_that_fails_is_one_line(closed: FakeRegistry, keep: Keep) -> None:
    keep({"credsStore": "that-is-not-installed"})
    with pytest.raises(UserError, match="reading docker's credentials"):
        store(closed)


def test_an_identity_token_is_told_to_be_of_no_use(closed: FakeRegistry, keep: Keep) -> None:
    keep({"auths": {closed.host: {"auth": "", "identitytoken": "x"}}})
    with pytest.raises(UserError, match="identity token"):
        store(closed)


def test_what_anybody_may_read_needs_no_credentials(keep: Keep) -> None:
    keep({})
    with FakeRegistry(authentication="bearer").serving() as host:
        assert Repository(f"{host}/vpoc").manifest("one") is None


def test_a_registry_that_does_not_answer_is_not_waited_for_for_ever(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep({})
    monkeypatch.setattr(connection, "SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"registry {host} does not answer: .*timed? ?out"):
            Connection(host).ask("GET", "")


FOUND = b"HTTP/1.1 302 Found\r\nLocation: /v2/x\r\n"


@contextmanager
def answering(
    content: bytes, pieces: int = 1, pause: float = 0.0, length: int | None = None, head: bytes | None = None
) -> Iterator[str]:
    """Answer one request with `content`, sent `pieces` times; yield host and port."""
    said = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(content) * pieces)

    def serve() -> None:
        peer, _ = server.accept()
        with peer, suppress(OSError):
            peer.recv(1 << 16)
            peer.sendall(said if head is None else head)
            for _ in range(pieces):
                peer.sendall(content)
                time.sleep(pause)

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_an_answer_is_as_long_and_as_slow_as_answers_are(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep({})
    monkeypatch.setattr(connection, "LARGEST_ANSWER", 1 << 20)
    with answering(b"x" * (1 << 19), 4) as host, pytest.raises(UserError, match="more than 1 MiB"):
        Connection(host).ask("GET", "")
    with (
        answering(b"x" * (1 << 19), 4, head=FOUND + b"\r\n") as host,
        pytest.raises(UserError, match="more than 1 MiB"),
    ):
        Connection(host).ask("GET", "")
    with answering(b"x", length=2) as host, pytest.raises(UserError, match=f"registry {host} does not answer"):
        Connection(host).ask("GET", "")
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.05)
    # Slow are, in turn: the body, the first line, the head, the interim answers before it, and the body of a redirect.
    for head in (None, b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n" * 9, FOUND + b"\r\n"):
        with answering(b"x", 60, 0.02, head=head) as host, pytest.raises(UserError, match="takes more than 0 s"):
            Connection(host).ask("GET", "")


def test_all_answers_together_take_as_long_as_answers_do(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep({})
    monkeypatch.setattr(connection, "ALL_SECONDS", 1.0)
    with FakeRegistry().serving() as host:
        asking = Connection(host)
        assert asking.ask("GET", "").status_code == 200
        time.sleep(1.0)
        # Only the time spent waiting for answers counts.
        assert asking.ask("GET", "").status_code == 200
        asking._seconds_left = 0.0
        with pytest.raises(UserError, match=f"registry {host} takes more than 1 s for its answers"):
            asking.ask("GET", "")


@pytest.mark.parametrize("place", ["file:///etc/passwd", "http://[::1", "ftp://127.0.0.1/x"])
def test_a_registry_does_not_say_what_else_is_read(place: str, keep: Keep) -> None:
    keep({})
    head = f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()
    with answering(b"", head=head) as host, pytest.raises(UserError, match=rf"registry {host} redirects to ") as told:
        Connection(host).ask("GET", "")
    assert place in str(told.value)


@pytest.mark.parametrize("token", [b"[1]", b"[" * 100_000, b'{"token": {}}', b'{"token": "a\\nb"}', b"not JSON"])
def test_a_token_that_is_none_is_no_traceback(token: bytes, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    keep({})
    monkeypatch.setattr("tests.harness.fake_registry.json.dumps", lambda _: token.decode())
    with FakeRegistry(authentication="bearer").serving() as host, pytest.raises(UserError, match="refuses"):
        Repository(f"{host}/vpoc").manifest("one")


def test_a_refusal_of_another_kind_is_reported(keep: Keep) -> None:
    keep({})
    with FakeRegistry().serving() as host, pytest.raises(UserError, match=f"registry {host} says 404 to GET nowhere"):
        Connection(host).ask("GET", "nowhere")


@pytest.mark.parametrize("charset", ["idna", "undefined", "a\0b", "punycode"])
def test_a_refusal_is_read_as_utf_8_whatever_charset_the_registry_names(charset: str, keep: Keep) -> None:
    keep({})
    body = "zażółć-".encode() + b"z" * (1 << 20)
    head = f"HTTP/1.1 418 X\r\nContent-Type: text/plain; charset={charset}\r\nContent-Length: {len(body)}\r\n\r\n"
    with answering(body, head=head.encode()) as host, pytest.raises(UserError, match="says 418 to GET x: zażółć-zzz"):
        Connection(host).ask("GET", "x")


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.9.9.9:5000", True),
        ("[::1]:5000", True),
        ("ghcr.io", False),
        ("10.1.2.3:5000", True),
        ("10.2.2.3:5000", False),
        ("listed.example:5000", True),
        ("secure.example", False),
        ("localhost.example", False),
    ],
)
def test_plain_http_is_for_loopback_and_what_the_engine_lists(
    host: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FakeEngine:
        facts = {  # noqa: RUF012
            "RegistryConfig": {
                "InsecureRegistryCIDRs": ["127.0.0.0/8", "10.1.0.0/16"],
                "IndexConfigs": {"listed.example:5000": {"Secure": False}, "secure.example": {"Secure": True}},
            }
        }

    monkeypatch.setattr(connection, "reach_engine", FakeEngine)
    assert connection._speaks_plain_http(host) == plain


def test_without_an_engine_only_loopback_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise UserError("an engine is there, and does not answer")

    monkeypatch.setattr(connection, "reach_engine", none)
    assert not connection._speaks_plain_http("10.1.2.3:5000")


def test_a_registry_without_encryption_is_reported_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_speaks_plain_http", lambda _: False)
    with FakeRegistry().serving() as host, pytest.raises(UserError, match=rf"{host} does not answer: [\w ]+; check"):
        Connection(host).ask("GET", "nothing")


def test_credentials_are_not_sent_unprotected_where_the_registry_is_protected(
    keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep({"auths": {"secure.example": {"auth": BASIC.removeprefix("Basic ")}}})
    monkeypatch.setattr(connection, "reach_engine", lambda: None)
    asked = FakeRegistry()
    with asked.serving() as host:
        challenge = f'Bearer realm="http://{host}/token",service="x",scope="repository:vpoc:pull"'
        with pytest.raises(UserError, match="without encryption; nothing was sent"):
            Connection("secure.example")._authorize(challenge, "vpoc/manifests/one")
    assert asked.asked == []


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_authority_in_dockers_folder_is_used_whatever_the_variables_say(
    tmp_path: Path, keep: Keep, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with served(private_authority(tmp_path)) as server:
        host = f"127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(connection, "_speaks_plain_http", lambda _: False)
        monkeypatch.setattr(connection, "CERTIFICATES", tmp_path / "certs.d")
        monkeypatch.setenv(variable, str(SYSTEM))
        with pytest.raises(UserError, match=rf"^registry {host} does not answer: [\w' -]+; check its name and the net"):
            Connection(host).ask("GET", "nothing")
        (tmp_path / "certs.d" / host).mkdir(parents=True)
        (tmp_path / "authority.pem").rename(tmp_path / "certs.d" / host / "ca.crt")
        assert Connection(host).ask("GET", "nothing", also=(404,)).status_code == 404


def test_a_file_of_certificates_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "gone.crt"))
    with pytest.raises(UserError, match=rf"registry registry\.invalid cannot be asked: .*{tmp_path}/gone\.crt"):
        Repository("registry.invalid/images").tags()
