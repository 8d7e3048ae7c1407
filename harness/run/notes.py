"""Errors that cost no record: the harness's own, and those of reading what an app left, by which its run has failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.validation_errors import first_problem


class Notes(list[str]):
    """Lines for a record about errors of the harness itself, which are no reason to lose the record."""

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Note an error in the block, and continue after it. `what`: what the block does, in words."""
        try:
            yield
        except Exception as error:
            self.append(f"{what} failed: {type(error).__name__}: {error}")


class Unreadable(list[str]):
    """Lines about files that an app left and that the harness could not read."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note an error in the block, which reads what an app left.

        Raises:
            UserError: when the block raises one: it is about the harness's own files.
        """
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            self.append(cannot_be_read(error))


def cannot_be_read(error: Exception) -> str:
    """Return the words for an error of reading what an app left."""
    why = first_problem(error) if isinstance(error, ValidationError) else error
    return f"what it left cannot be read: {type(error).__name__}: {why}"
