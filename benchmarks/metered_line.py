"""A line to a server on loopback that is like a home connection: slow and sometimes cut. Its bytes are counted."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

PIECE = 1 << 16


@dataclass
class MeteredLine:
    """Forwards connections to an address.

    `to`: host and port of the server.
    `rate`: bytes per second of all connections together, in each direction; None for no limit.
    `down`, `up`: bytes that came from the server, and that went to it.
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
        """Forward connections until the end of the `with` statement; yield host and port of this end."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.host = f"127.0.0.1:{server.getsockname()[1]}"
            thread = Thread(target=self._serve, args=(server,), daemon=True)
            thread.start()
            yield self.host
            # A listening socket that is only closed would still accept connections.
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
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
                        # Sleeps while it holds the lock, so that the other connections wait too.
                        time.sleep(len(piece) / self.rate)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
