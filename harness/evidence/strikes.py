"""Runs that a person struck out by hand, with the reason: a file beside the record, a line for each decision."""

import time
from typing import Literal

from pydantic import Field

from harness.base.errors import UnknownNameError, UserError
from harness.base.json_files import Versioned
from harness.base.json_lines import append_line, read_json_lines
from harness.evidence.run_folder import RunFolder


class Strike(Versioned):
    """A line of `strikes.jsonl`: a run that is not to count from then on, or is to count again."""

    decision: Literal["strike", "undo"]
    reason: str = Field(description="as the person gave it; of an undone one, why it counts again")
    at: float = Field(description="seconds since 1970")


def strike(folder: RunFolder, decision: Literal["strike", "undo"], reason: str) -> Strike:
    """Add a decision, durably; the record stays as it is.

    Raises:
        UserError: when the run has no record, is struck out already (or is not), or the folder cannot be written.
    """
    run = folder.path.name
    if not folder.record.is_file():
        raise UnknownNameError(f"{run}: no such run, or it has no record yet; `matrix status CELL` lists runs")
    now = struck_out(folder)
    if (now is not None) == (decision == "strike"):
        state = f"is struck out already: {now}" if now is not None else "is not struck out"
        raise UserError(f"{run}: {state}; nothing was changed")
    line = Strike(decision=decision, reason=reason, at=time.time())
    append_line(folder.strikes, line)
    return line


def strikes_of(folder: RunFolder) -> list[Strike]:
    """Return every decision on a run, the oldest first; lines that are damaged are passed over."""
    return list(read_json_lines(folder.strikes, Strike))


def struck_out(folder: RunFolder) -> str | None:
    """Return why a run does not count by a person's decision; None where it does."""
    last = next(reversed(strikes_of(folder)), None)
    return last.reason if last and last.decision == "strike" else None
