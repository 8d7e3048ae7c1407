"""Errors of reading what an app left: such a run has failed, and only that."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.base.errors import UserError


def cannot_be_read(error: Exception) -> str:
    """Return an error of reading what an app left, in words."""
    return f"what it left cannot be read: {type(error).__name__}: {error}"


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
