"""A registry on loopback from which an engine on this host pulls one image of another registry.

An engine throws away the layers of an interrupted pull, even complete ones (moby#26146). The relay keeps them outside
the engine until the pull has ended. The engine fetches only the layers that it lacks, as from any registry.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from threading import Lock, Thread
from typing import Any

from harness.base.errors import UserError
from harness.host.engine_errors import Notify
from harness.registry.kept_layers import KeptLayers
from harness.registry.oci import DIGEST, LARGEST_CONFIGURATION, Manifest, Repository, blobs_of, descriptor_in

# The names that images have while they are pulled through a relay; no other tool makes such names.
RELAYED = re.compile(r"127\.0\.0\.1:\d+/matrix-[0-9a-f]{32}/vpoc@sha256:[0-9a-f]{64}")
# Refuse with DENIED, because the engine repeats a request after other refusals, each time after a longer pause.
DENIED = b'{"errors": [{"code": "DENIED", "message": "the relay has stopped"}]}'


class Relay:
    """A registry with the content of `repository`. `problem` is why it refused; `asked` is whether the engine came."""

    def __init__(self, repository: str, doing: str, notify: Notify) -> None:
        # The name is random, so that other users of this host do not know it.
        self.path = f"matrix-{token_hex(16)}/vpoc"
        self.problem: UserError | None = None
        self.asked = False
        self._repository, self._doing, self._notify = Repository(repository), doing, notify
        self._sizes: dict[str, int] = {}
        self._there: set[str] = set()
        self._bytes = 0
        self._lock = Lock()
        self.layers = KeptLayers(repository, notify, self._advanced)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on loopback; yield the name of the repository for the engine."""
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"relay": self}))
        server.daemon_threads, server.block_on_close = True, False
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}/{self.path}"
        finally:
            self.layers.stop()
            server.shutdown()
            thread.join()
            server.server_close()

    def in_the_engine(self, short: str) -> None:
        """Note that the engine has the layer whose digest begins with `short`."""
        self._there |= {digest for digest in self._sizes if digest.removeprefix("sha256:").startswith(short)}

    def manifest(self, reference: str) -> Manifest | None:
        """Return a manifest, whose blobs may be requested from then on.

        Raises:
            UserError: when the registry fails, or the image's configuration is larger than an engine can handle.
        """
        with self._lock:
            found = self._repository.manifest(reference)
            described = descriptor_in(found, "config").get("size") if found else None
            if isinstance(described, int) and described > LARGEST_CONFIGURATION:
                raise UserError(
                    f"{self._repository.name}:{reference}: variables and labels of the image take {described} bytes, "
                    f"more than {LARGEST_CONFIGURATION}; do not trust this registry"
                )
            for blob in blobs_of(found) if found else ():
                size, digest = blob.get("size"), str(blob.get("digest"))
                # Check the digest, because it becomes the name of a file.
                if isinstance(size, int) and size > 0 and DIGEST.fullmatch(digest):
                    self._sizes[digest] = size
        return found

    def size(self, digest: str) -> int | None:
        """Return the size of a blob of the image; None for any other blob."""
        return self._sizes.get(digest)

    def forget(self) -> None:
        """Remove the blobs of the image that were kept."""
        self.layers.forget(self._sizes)

    def _advanced(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            whole = sum(size for digest, size in self._sizes.items() if digest not in self._there)
            self._notify(f"{self._doing}: {self._bytes / 1e6:.0f} of {whole / 1e6:.0f} MB")


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore cut connections, also between two requests, because the engine closes connections at any time."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    relay: Relay
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        relay, own = self.relay, f"/v2/{self.relay.path}/"
        if self.path != "/v2/" and not self.path.startswith(own):
            # The request comes from somebody else on this host.
            self._answer(404)
            return
        relay.asked = True
        # The engine closes connections at any time.
        with suppress(ConnectionError):
            try:
                if relay.problem:
                    # The engine asks once more after a refusal, and would wait again for a complete attempt.
                    raise relay.problem
                what, _, name = self.path.removeprefix(own).partition("/")
                if self.path == "/v2/":
                    self._answer(200, b"{}")
                elif not DIGEST.fullmatch(name):
                    self._answer(404)
                elif what == "manifests" and (manifest := relay.manifest(name)):
                    self._answer(200, manifest.content, manifest.media_type, digest=manifest.digest)
                elif what == "blobs" and (size := relay.size(name)) is not None:
                    self._send_blob(name, size)
                else:
                    self._answer(404)
            except UserError as error:
                relay.problem = relay.problem or error
                self._answer(403, DENIED)

    do_HEAD = do_GET  # noqa: N815 - what the library looks for

    def _send_blob(self, digest: str, size: int) -> None:
        with self.relay.layers.fetch(digest, size).open("rb") as stream:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            begin = min(int(asked[1]), size) if asked else 0
            stream.seek(begin)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - begin))
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Docker-Content-Digest", digest)
            self.end_headers()
            if self.command == "GET":
                shutil.copyfileobj(stream, self.wfile, 1 << 20)

    def _answer(self, status: int, content: bytes = b"", kind: str = "application/json", digest: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
