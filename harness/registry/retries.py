"""Retries attempts that a cut connection interrupts, a few times, after longer and longer pauses."""

import time
from collections.abc import Callable
from typing import TypeVar

from harness.base.errors import NoAnswerError
from harness.host.engine_errors import Notify

T = TypeVar("T")
# Pauses in seconds, some long enough for a router to restart. Any progress starts the sequence again.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)


def with_retries(attempt: Callable[[], T], progress: Callable[[], int], notify: Notify) -> T:
    """Return the result of an attempt, repeating the attempt if its connection is cut.

    `progress` returns how much has come through so far; if that is nothing, the attempt is not repeated.

    Raises:
        NoAnswerError: when nothing comes through at all, or in a whole row of attempts.
    """
    failed, before = 0, 0
    while True:
        try:
            return attempt()
        except NoAnswerError as error:
            if (now := progress()) > before:
                failed, before = 0, now
            if not now:
                raise
            if failed == len(PAUSES):
                raise NoAnswerError(
                    f"{error}; it failed {failed + 1} times in a row. Finished parts are kept: give the "
                    "command again once it answers"
                ) from None
            notify(f"{error}; trying again in {PAUSES[failed]:.0f} s")
            time.sleep(PAUSES[failed])
            failed += 1
