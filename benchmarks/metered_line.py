"""A line to a server on loopback as one has it at home: slow, counted, and cut now and then."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

PIECE = 1 << 16


@dataclass
class MeteredLine:
    """Forwards connections to `to`. `down` and `up` are the bytes that came from there and went there.

    `rate` is the number of bytes a second of all connections together, each way; None for no limit.
    """

    to: tuple[str, int]
    rate: float | None = None
    host: str = ""
    down: int = 0
    up: int = 0
    _open: set[socket.socket] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Forward until the end; yields host and port."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.host = f"127.0.0.1:{server.getsockname()[1]}"
            thread = Thread(target=self._serve, args=(server,), daemon=True)
            thread.start()
            yield self.host
            # A socket that is only closed goes on to accept.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
        self.cut()

    def cut(self) -> None:
        """Break every connection off in the middle."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _serve(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.to) as there:
            with self._lock:
                self._open |= {client, there}
            back = Thread(target=self._carry, args=(there, client, "down"), daemon=True)
            back.start()
            self._carry(client, there, "up")
            back.join()
            with self._lock:
                self._open -= {client, there}

    def _carry(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                target.sendall(piece)
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(piece))
                    if self.rate and len(piece) > 1000:
                        # Within the lock: the others wait, too.
                        time.sleep(len(piece) / self.rate)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
