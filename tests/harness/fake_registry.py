"""A registry in memory that does what Debian's registry cannot: issue tokens, list referrers, and misbehave."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from harness.registry.oci import IMAGE_INDEX, IMAGE_MANIFEST, digest_of

BASIC = "Basic " + b64encode(b"somebody:secret").decode()


@dataclass
class FakeRegistry:
    """A registry in memory.

    - `knows_referrers`: it lists the artifacts that refer to an image.
    - `authentication`: the credentials that it asks for: `basic`, or `bearer`, with which anybody may read; None: no
      credentials.
    - `instead`: the content that it sends in place of any blob or manifest.
    - `redirects_to`: the address to which it redirects every request.
    - `range_starts_at`: the byte at which its answer to a request for a range of a blob begins; None: it ignores the
      range and sends the whole blob.
    """

    knows_referrers: bool = False
    authentication: str | None = None
    instead: bytes | None = None
    redirects_to: str | None = None
    range_starts_at: int | None = None
    host: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and `Authorization` header of every request."""

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on loopback, and yield host and port."""
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": self}))
        # Clients keep their connections open, so the threads that serve them never end by themselves.
        server.daemon_threads = True
        self.host = f"127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self.host
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def blob(self, name: str) -> bytes:
        """Return the content of a blob."""
        return self.blobs[name]

    def referrers(self, digest: str) -> bytes:
        """Return the index of the artifacts that refer to a digest."""
        found = []
        for content, kind in self.manifests.values():
            manifest = json.loads(content)
            if (manifest.get("subject") or {}).get("digest") == digest:
                entry = {"mediaType": kind, "digest": digest_of(content), "size": len(content)}
                found.append({**entry, "artifactType": manifest["artifactType"]})
        unique = {entry["digest"]: entry for entry in found}
        return json.dumps({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [*unique.values()]}).encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about clients that disconnect: another test may be checking what is printed by then."""


class _Handler(BaseHTTPRequestHandler):
    registry: FakeRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url, given = urlsplit(self.path), self.headers.get("Authorization", "")
        self.registry.asked.append((self.command, url.path, given))
        query = parse_qs(url.query)
        if url.path == "/token":
            self._token(query["scope"][0], given)
        elif self._may(url.path, given):
            self._serve(url.path, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = _handle  # noqa: N815 - what the library looks for

    def _may(self, path: str, given: str) -> bool:
        authentication = self.registry.authentication
        scope = "pull" if self.command in ("GET", "HEAD") else "pull,push"
        if authentication == "basic" and given != BASIC:
            self._answer(401, WWW_Authenticate='Basic realm="x"')
            return False
        # A token for writing also allows reading, but not the other way round.
        if authentication == "bearer" and path != "/v2/" and given not in (f"Bearer {scope}", "Bearer pull,push"):
            realm = f'realm="http://{self.registry.host}/token",service="x",scope="repository:vpoc:{scope}"'
            self._answer(401, WWW_Authenticate=f"Bearer {realm}")
            return False
        return True

    def _token(self, scope: str, given: str) -> None:
        wanted = scope.rsplit(":", 1)[1]
        if "push" in wanted and given != BASIC:
            self._answer(401)
        else:
            self._answer(200, json.dumps({"token": wanted}).encode(), Content_Type="application/json")

    def _serve(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        registry = self.registry
        found = re.search(r"/(manifests|blobs|referrers|uploads)/([^/]*)$", path)
        what, name = found.groups() if found else ("", "")
        if registry.redirects_to:
            self._answer(307, Location=f"{registry.redirects_to}{path}")
        elif path == "/v2/":
            self._answer(200)
        elif what == "referrers" and registry.knows_referrers:
            self._answer(200, registry.referrers(name), Content_Type=IMAGE_INDEX)
        elif what == "uploads" and self.command == "POST":
            self._answer(202, Location=f"{path}1?state=x")
        elif what == "uploads":
            registry.blobs[query["digest"][0]] = body
            self._answer(201)
        elif what == "manifests" and self.command == "PUT":
            self._put(name, body)
        elif what == "manifests" and name in registry.manifests:
            content, kind = registry.manifests[name]
            self._answer(200, registry.instead or content, Content_Type=kind)
        elif what == "blobs" and "Range" in self.headers and registry.range_starts_at is not None:
            content, begun = registry.blobs[name], registry.range_starts_at
            self._answer(206, content[begun:], Content_Range=f"bytes {begun}-{len(content) - 1}/{len(content)}")
        elif what == "blobs" and name in registry.blobs:
            self._answer(200, registry.instead or registry.blob(name))
        else:
            self._answer(404)

    def _put(self, name: str, content: bytes) -> None:
        kept = (content, self.headers.get("Content-Type", IMAGE_MANIFEST))
        self.registry.manifests |= {name: kept, digest_of(content): kept}
        subject = json.loads(content).get("subject")
        manifest = {"OCI_Subject": subject["digest"]} if subject and self.registry.knows_referrers else {}
        self._answer(201, **manifest)
