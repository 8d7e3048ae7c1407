"""What the doctor says about one thing it looked at."""

import re
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What was found by a check, why it matters, and the one command that fixes it (None where nothing is to be done).

    A problem keeps something from running; a warning is known to spoil runs; a note is good to know.
    """

    level: Level
    what: str
    why: str = ""
    fix: str | None = None
    check: str = ""


def ok(what: str) -> Finding:
    """Nothing to be done."""
    return Finding("ok", what)


def note(what: str, why: str, fix: str | None = None) -> Finding:
    """Good to know."""
    return Finding("note", what, why, fix)


def warning(what: str, why: str, fix: str) -> Finding:
    """Known to spoil runs."""
    return Finding("warning", what, why, fix)


def problem(what: str, why: str, fix: str) -> Finding:
    """Keeps something from running."""
    return Finding("problem", what, why, fix)


def command_in(text: str) -> str | None:
    """The first command that a message to the user has in backticks."""
    found = re.search(r"`([^`]+)`", text)
    return found[1] if found else None
