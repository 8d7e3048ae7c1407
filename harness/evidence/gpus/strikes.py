"""Runs that a person struck out by hand, with the reason: a file beside the record, one line for each decision."""

import os
import time
from contextlib import suppress
from typing import Literal

from pydantic import Field, ValidationError

from harness.base.errors import UnknownNameError, UserError
from harness.base.files.json_files import Moment, OneLine, Versioned
from harness.base.files.json_lines import append_line
from harness.base.files.storage import ROOT
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import ANY_SIZE, UntrustedTree
from harness.base.text import LONGEST_QUOTE, safe_text
from harness.evidence.files.run_folder import RunFolder

# Most bytes that are read, at the end of the file: few runs have more than one decision.
MOST_BYTES = 1 << 16


class Strike(Versioned):
    """A line of `strikes.jsonl`: the decision that a run does not count from then on, or counts again."""

    decision: Literal["strike", "undo"]
    reason: OneLine = Field(description="as the person gave it; of an undone one, why it counts again")
    at: Moment = Field(description="seconds since 1970")


def strike(folder: RunFolder, decision: Literal["strike", "undo"], reason: str) -> Strike:
    """Add a decision, durably; the record is not changed.

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
    """Return the last decisions on a run, the oldest first; damaged lines are skipped.

    Only the end of the file is read: every command does so, and another host may have written any amount.
    """
    decisions = []
    with suppress(FileNotFoundError, NotAFileError), UntrustedTree(folder.path).open(folder.STRIKES, ANY_SIZE) as file:
        for line in file.read(max(0, file.size - MOST_BYTES), MOST_BYTES).split(b"\n"):
            with suppress(ValidationError):
                decisions.append(Strike.parse(line))
    return decisions


def struck_out(folder: RunFolder) -> str | None:
    """Return why a person decided that a run does not count; None where it counts.

    What another user wrote beside a run of this one is quoted; of another's run, as its whole row is.
    """
    last = next(reversed(strikes_of(folder)), None)
    if last is None or last.decision != "strike":
        return None
    theirs = folder.is_mine and folder.strikes.lstat().st_uid not in (os.geteuid(), ROOT)
    return safe_text(last.reason, LONGEST_QUOTE) if theirs else last.reason
