"""Tests of reading the pages of a package index that is broken or hostile."""

import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base import time_limits
from harness.base.errors import NoAnswerError, UserError
from harness.environments.python import index_pages
from harness.environments.python.index_pages import LARGEST_PAGE, download, files_of
from harness.matrix.stacks import Stack

Serve = Callable[[bytes], Stack]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that makes an index answer with the given bytes only, and returns a stack that uses it."""
    said: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(said[-1])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # Print nothing about clients that disconnect: another test may be checking what is printed by then.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(content: bytes) -> Stack:
        said.append(content)
        mirror = f"http://127.0.0.1:{server.server_port}"
        return Stack(name="rocm6.3-torch2.9.1", accelerator="rocm", rocm="6.3", torch="2.9.1", mirror=mirror)

    yield answer
    server.shutdown()
    server.server_close()


def page(content: bytes) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00garbage\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    ],
    ids=["no HTTP", "no chunk", "long header"],
)
def test_what_is_no_answer_is_reported_in_a_line(serve: Serve, answer: bytes) -> None:
    with pytest.raises(UserError, match="cannot be read") as told:
        list(files_of(serve(answer), "pkg", "1.0"))
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(b"404 Not Found", UserError), (b"403 No", UserError), (b"429 Later", NoAnswerError), (b"502 Bad", NoAnswerError)],
)
def test_an_index_that_is_away_is_distinguished_from_one_that_refuses(
    serve: Serve, status: bytes, kind: type[UserError], tmp_path: Path
) -> None:
    stack = serve(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
    with pytest.raises(UserError, match="cannot be read") as told:
        download(str(stack.mirror), tmp_path / "file")
    assert type(told.value) is kind


def test_an_answer_that_breaks_off_is_no_whole_file(serve: Serve, tmp_path: Path) -> None:
    stack = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    with pytest.raises(UserError, match="it broke off after 3 bytes"):
        download(str(stack.mirror), tmp_path / "file")


def test_an_answer_in_drops_is_abandoned(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "time", SimpleNamespace(monotonic=count(0, 90).__next__))
    with pytest.raises(UserError, match="fewer than 1000 bytes a second came"):
        download(str(serve(page(b"abc")).mirror), tmp_path / "file")


def test_the_head_of_an_answer_in_drops_is_abandoned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(index_pages, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()
        drip = threading.Thread(target=_drip, args=(server, ended))
        drip.start()
        try:
            with pytest.raises(UserError, match=r"it takes more than 0\.2 s to begin with an answer"):
                download(f"http://127.0.0.1:{server.getsockname()[1]}/file", tmp_path / "file")
        finally:
            ended.set()
            drip.join()


def _drip(server: socket.socket, ended: threading.Event) -> None:
    peer, _ = server.accept()
    with peer, suppress(OSError):
        peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.05):
            peer.sendall(b"y")
        # Reset the connection, so that a client that still reads gets an error and does not wait for ever.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_what_comes_with_a_redirect_is_not_read(serve: Serve, tmp_path: Path) -> None:
    """Content without an end would fill the memory."""
    stack = serve(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 9\r\n\r\nabc")
    with pytest.raises(UserError, match="is not allowed"):
        download(str(stack.mirror), tmp_path / "file")
    stack = serve(b"HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 9\r\n\r\nabc")
    with pytest.raises(UserError, match="infinite loop"):
        download(str(stack.mirror), tmp_path / "file")


def test_a_file_without_an_end_and_a_full_disk_are_reported_in_a_line(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(serve(page(b"abc" * 1000)).mirror)
    with pytest.raises(UserError, match=r"/dev/full: cannot be written: No space left on device"):
        download(url, Path("/dev/full"))
    monkeypatch.setattr(index_pages, "LARGEST_FILE", 2000)
    with pytest.raises(UserError, match="no wheel has more than"):
        download(url, tmp_path / "file")


def test_links_are_found_and_those_that_lead_nowhere_are_passed_over(serve: Serve, tmp_path: Path) -> None:
    mine = tmp_path / "pkg-1.0.tar.gz"
    mine.touch()
    text = f"""<a href="http://[x/pkg-1.0.tar.gz">1</a> <a href="{mine.as_uri()}">2</a>
    <a href="gopher://x/pkg-1.0.tar.gz">3</a>
    <A data-requires-python='>=3.9' HREF = 'pkg-1.0.tar.gz?a=1&amp;b=2#sha256=0'>4</A>
    <a href="other-1.0.tar.gz">5</a>"""
    stack = serve(page(text.encode()))
    assert list(files_of(stack, "pkg", "1.0")) == [
        ("pkg-1.0.tar.gz", f"{stack.index.rstrip('/')}/pkg/pkg-1.0.tar.gz?a=1&b=2#sha256=0")
    ]


def test_a_page_in_many_pieces_is_not_copied_with_each_and_takes_no_more_memory_than_its_bytes(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single character of four bytes makes text of four bytes a character; copying took minutes."""
    pieces, link = 10_000, b'<a href="pkg-1.0.tar.gz">'
    monkeypatch.setattr(index_pages, "_blocks", lambda _: iter([*[b"x" * 999] * pieces, "\U0001f600".encode(), link]))
    stack = serve(b"")
    tracemalloc.start()
    (found,) = files_of(stack, "pkg", "1.0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == "pkg-1.0.tar.gz"
    assert peak < 3 * 999 * pieces


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b'<a href="', b"<a ", b"<a '", b"<a x='' ", b"<!", b"<a href=" + b" " * 50])
def test_the_largest_page_is_read_in_the_time_that_it_is_long(serve: Serve, piece: bytes) -> None:
    """`HTMLParser` would take hours."""
    stack = serve(page(piece * (LARGEST_PAGE // 10 // len(piece))))
    assert list(files_of(stack, "pkg", "1.0")) == []
