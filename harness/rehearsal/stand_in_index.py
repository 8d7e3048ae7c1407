"""A package index on loopback that answers as a source of wheels does, with files that stand in for real ones."""

import hashlib
import re
import shutil
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from harness.base.files.hashes import file_hash
from harness.rehearsal.packages import IndexFile

FOUND, FORBIDDEN, MISSING = 200, 403, 404


@dataclass(frozen=True)
class SourceContent:
    """The files of a source of wheels, and how the source answers.

    `hashed`: whether its pages give the hash of each file.
    `folder`: whether it is one page that lists all files, instead of an index of projects.
    `missing`: its HTTP status for files that it does not have.
    """

    files: tuple[IndexFile, ...]
    hashed: bool = True
    folder: bool = False
    missing: int = MISSING


def index_page(files: Iterable[IndexFile], *, hashed: bool) -> str:
    """Return the index page that lists files, which lie beside the page."""
    lines = []
    for name, content in files:
        mark = f"#sha256={_hash(content)}" if hashed else ""
        lines.append(f'<a href="{quote(name)}{mark}">{name}</a><br>')
    return "<!DOCTYPE html><html><body>" + "\n".join(lines) + "</body></html>"


def project_of(file: str) -> str:
    """Return the normalized name of the project that a file belongs to."""
    name = re.sub(r"-\d.*$", "", file)
    return re.sub(r"[-_.]+", "-", name).lower()


def _hash(content: bytes | Path) -> str:
    return file_hash(content) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


class StandIn(ThreadingHTTPServer):
    """The server.

    `asked`: the requested paths.
    `refused`: how many of these requests got a 403.
    `refuses`: the places that answer every request with 403.
    """

    daemon_threads = True

    def __init__(self, places: Mapping[str, SourceContent], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self._scheme = "https" if context else "http"
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.places = places
        self.asked: list[str] = []
        self.refused = 0
        self.refuses: set[str] = set()
        self._pages: dict[tuple[str, str], bytes] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection once they have read enough of a wheel."""

    def url(self, place: str) -> str:
        """Return the URL of a place."""
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}/{place}"

    def page_of(self, place: str, name: str) -> bytes | None:
        """Return the page of a project, computed once; None if the place has no file of it."""
        if (place, name) not in self._pages:
            has = self.places[place]
            mine = has.files if has.folder else [one for one in has.files if project_of(one[0]) == name]
            if not mine:
                return None
            self._pages[place, name] = index_page(mine, hashed=has.hashed).encode()
        return self._pages[place, name]


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer like GET, but without the content."""
        self._answer(with_content=False)

    def do_GET(self) -> None:
        """Answer with a page or a file."""
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        status, kind, content = self._found(server)
        if status == FORBIDDEN:
            server.refused += 1
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(content.stat().st_size if isinstance(content, Path) else len(content)))
        self.end_headers()
        if with_content:
            with content.open("rb") if isinstance(content, Path) else BytesIO(content) as stream:
                shutil.copyfileobj(stream, self.wfile, 1 << 20)

    def _found(self, server: StandIn) -> tuple[int, str, bytes | Path]:
        name, _, rest = unquote(self.path).strip("/").partition("/")
        place = server.places.get(name)
        if place is None or name in server.refuses:
            return FORBIDDEN if name in server.refuses else MISSING, "text/plain", b""
        file = next((content for known, content in place.files if known == rest.rpartition("/")[2]), None)
        if file is not None:
            return FOUND, "application/octet-stream", file
        page = server.page_of(name, rest)
        return (place.missing, "text/plain", b"") if page is None else (FOUND, "text/html", page)


@contextmanager
def serving(places: Mapping[str, SourceContent], context: ssl.SSLContext | None = None) -> Iterator[StandIn]:
    """Serve these places on loopback, over TLS if a context is given."""
    server = StandIn(places, context)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
