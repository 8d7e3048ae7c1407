"""Limits the time to examine something that may be unhealthy, or to read data that may come too slowly."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# Longest wait for a driver, in seconds: a healthy one takes a few milliseconds.
ANSWER_SECONDS = 5.0
# Slowest transfer that is continued, in bytes a second; each piece of a slower one may still come in time.
LEAST_SPEED = 1000
# Most points of time that are remembered, with the bytes that had come by then.
_MARKS = 60


class BackgroundCall(Generic[T]):
    """Calls a function in a thread of its own, so that its caller need not wait for the result for ever.

    A read of a file in /sys can block in the driver, where no signal ends it: then the thread is left behind.
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._found: list[T] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """True once the function has returned or raised."""
        return not self._thread.is_alive()

    def result(self, seconds: float) -> T:
        """Return what the function returned.

        Raises:
            TimeoutError: when it takes more than `seconds` from now.
            Exception: what the function raised.
        """
        self._thread.join(seconds)
        if self._error:
            raise self._error
        if not self._found:
            raise TimeoutError
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._look())
        except Exception as error:
            # Any error is raised again where the result is requested.
            self._error = error


def read_pieces_in_time(read: Callable[[], bytes], seconds: float) -> Iterator[bytes]:
    """Yield the pieces that `read` returns, up to an empty one; only the time spent in `read` counts.

    Raises:
        TimeoutError: when fewer than LEAST_SPEED bytes a second came in the last `seconds`.
    """
    waited, size = 0.0, 0
    marks = deque([(waited, size)])
    while True:
        began = time.monotonic()
        if not (piece := read()):
            return
        waited += time.monotonic() - began
        size += len(piece)
        yield piece
        if waited - marks[-1][0] >= seconds / _MARKS:
            marks.append((waited, size))
        while len(marks) > 1 and waited - marks[1][0] >= seconds:
            marks.popleft()
        since, before = marks[0]
        if waited - since >= seconds and size - before < LEAST_SPEED * (waited - since):
            raise TimeoutError(f"fewer than {LEAST_SPEED} bytes a second came in the last {waited - since:.0f} s")
