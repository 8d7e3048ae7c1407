"""Errors that cost no record: of the harness itself, and of reading what an app left, by which that run has failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.base.errors import UserError


class Notes(list[str]):
    """Lines for a record about what failed in the harness itself: no reason to lose the record."""

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note an error of what is done in here, and continue after it."""
        try:
            yield
        except Exception as error:
            self.append(f"{what} failed: {type(error).__name__}: {error}")


class Unreadable(list[str]):
    """Lines on what an app left and that nothing here could make sense of."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note an error of reading what an app left.

        Raises:
            UserError: as what is done in here does: of the harness's own files.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            self.append(cannot_be_read(error))


def cannot_be_read(error: Exception) -> str:
    """Return an error of reading what an app left, in words."""
    return f"what it left cannot be read: {type(error).__name__}: {error}"
