"""The finding of a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vpoc.probes.site import WrongResultError

Numbers = Mapping[str, float | int | str | bool | None]


@dataclass(frozen=True)
class Finding:
    """One line, and the numbers behind it."""

    text: str
    numbers: Numbers = field(default_factory=dict)


class DiffersError(WrongResultError):
    """The code does not do on this device what it should; the line has the numbers that matter, `numbers` all."""

    def __init__(self, text: str, numbers: Numbers) -> None:
        super().__init__(text)
        self.numbers = numbers


@dataclass(frozen=True)
class Kit:
    """The input of every row: the file of prepared arrays, and how many steps a training makes."""

    arrays: Path
    steps: int


def held_if(condition: bool, text: str, numbers: Numbers) -> Finding:
    """Return the finding; DiffersError with the same text unless `condition`."""
    if not condition:
        raise DiffersError(text, numbers)
    return Finding(text, numbers)
