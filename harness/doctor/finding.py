"""The findings of the doctor."""

import re
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The finding of a check, why it matters, and the command that fixes it (None if nothing has to be done).

    A problem prevents something from running; a warning is a known cause of failures; a note is for information.
    """

    level: Level
    what: str
    why: str = ""
    fix: str | None = None
    check: str = ""


def ok(what: str) -> Finding:
    """Return a finding without need for action."""
    return Finding("ok", what)


def note(what: str, why: str, fix: str | None = None) -> Finding:
    """Return a finding for information."""
    return Finding("note", what, why, fix)


def warning(what: str, why: str, fix: str) -> Finding:
    """Return a finding that is a known cause of failures."""
    return Finding("warning", what, why, fix)


def problem(what: str, why: str, fix: str) -> Finding:
    """Return a finding that prevents something from running."""
    return Finding("problem", what, why, fix)


def command_in(text: str) -> str | None:
    """Return the first command in backticks in a message; None if there is none."""
    found = re.search(r"`([^`]+)`", text)
    return found[1] if found else None
