"""Looks at something that may be unhealthy, and reads what may come too slowly, for a limited time."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# What a driver that is well takes a few milliseconds to tell.
ANSWER_SECONDS = 5.0
# Bytes a second, below which nobody goes on with what comes: each of its pieces may come in time.
LEAST_SPEED = 1000
# What is remembered of how much had come, and when.
_MARKS = 60


class Look(Generic[T]):
    """Begins to call a function in a thread of its own; what it does not tell in time nobody waits for.

    A read of a file in /sys can be stuck in the driver, where no signal ends it: the thread is left behind then.
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
            # Whatever it is, it is raised where the result is asked for.
            self._error = error


def coming_in_time(read: Callable[[], bytes], seconds: float) -> Iterator[bytes]:
    """Yield the pieces that `read` returns, up to an empty one; only the time that they take to come counts.

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
