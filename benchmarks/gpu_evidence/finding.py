"""The input and the result of a row: the kit, the finding and the error for a difference."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vpoc.probes.site import WrongResultError

Numbers = Mapping[str, float | int | str | bool | None]


@dataclass(frozen=True)
class Finding:
    """The result of a row: one line of text, and the numbers behind it."""

    text: str
    numbers: Numbers = field(default_factory=dict)


class DiffersError(WrongResultError):
    """Raised if the code does not work on this device as it should; the text has the main numbers, `numbers` all."""

    def __init__(self, text: str, numbers: Numbers) -> None:
        super().__init__(text)
        self.numbers = numbers


@dataclass(frozen=True)
class Kit:
    """The input of every row: the file of prepared arrays, and the number of steps of a training."""

    arrays: Path
    steps: int


def finding_or_differs(condition: bool, text: str, numbers: Numbers) -> Finding:
    """Return the finding if `condition` holds; else raise DiffersError with the same text."""
    if not condition:
        raise DiffersError(text, numbers)
    return Finding(text, numbers)
