"""Looks at something that may be unhealthy, for a limited time."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# What a driver that is well takes a few milliseconds to tell.
ANSWER_SECONDS = 5.0


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
