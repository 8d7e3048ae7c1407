"""Notes about commands under way on this machine, so that others can watch them, and a crash leaves a trace."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files.json_bounds import load_json
from harness.base.files.storage import read_regular, write_json
from harness.base.text import one_line, safe_text
from harness.evidence.records import Results
from harness.host.processes.processes import ProcessId, boot_id

FOLDER = "campaigns"
WHATS = ("campaign", "training")
# The description of a command until it notes another one.
BEGINS = "looking at this host and for unfinished work"
LONGEST_DOING = 200
LARGEST_NOTE = 1 << 20
# An upper limit for pids and for times since the boot.
FAR = 1 << 63


@dataclass(frozen=True)
class Note:
    """The note of this command. `others`: a sentence for each other command that is under way on this machine."""

    file: Path
    content: dict[str, Any]
    others: tuple[str, ...]

    def doing(self, text: str) -> None:
        """Note a slow step outside of runs that begins now; an empty `text` means that none is under way."""
        # The note only serves watchers, so a full disk must not end a campaign here.
        with suppress(UserError, OSError):
            write_json(self.file, {**self.content, "doing": text, "since": time.time()})


@contextmanager
def noted_under_way(results: Results, machine: str, command: str, training: str | None = None) -> Iterator[Note]:
    """Note that a command is under way; the note stays if the process is killed or the host goes down.

    `training` is the name of the training that the command is; without it the command is a campaign. Several commands
    may be under way at once. A campaign that begins removes the notes of dead commands, also of trainings: the state of
    a training still names the command that continues it.
    """
    me = ProcessId.mine()
    file = note_file(results, machine, training or f"{me.pid}-{me.started}")
    what = "training" if training else "campaign"
    content = {"schema": 2, "command": command, "process": asdict(me), "what": what}
    write_json(file, {**content, "doing": BEGINS, "since": time.time()})
    if not training:
        for other, _ in _all_left(results, machine):
            other.unlink(missing_ok=True)
    others = (
        f"also under way here: `{one.command}` (process {one.process.pid}); both share this host"
        for _, one in _notes(results, machine)
        if one.process != me and one.process.alive()
    )
    try:
        yield Note(file, content, tuple(others))
    finally:
        # On a disk that became read-only, the error that ended the command says so.
        with suppress(OSError):
            file.unlink(missing_ok=True)


def note_file(results: Results, machine: str, name: str) -> Path:
    """Return the file of a note on a machine; it exists from the start of the command until it ends in order."""
    return results.folder / FOLDER / f"{machine}.{name}.under-way"


@dataclass(frozen=True)
class UnderWay:
    """A command, as its note describes it. `doing`: the slow step outside of runs, begun at `since` (Unix time)."""

    process: ProcessId
    command: str
    what: str
    doing: str
    since: float

    def in_words(self, watch: str) -> str:
        """Return what is under way, and that the command `watch` shows it."""
        return f"under way here: `{self.command}` (process {self.process.pid}): {self.doing}; `{watch}` shows it"


def under_way(results: Results) -> list[UnderWay]:
    """Return the commands under way on this host that use this results folder."""
    return [one for _, one in _notes(results) if one.process.alive()]


@dataclass(frozen=True)
class LeftOver:
    """A command whose process died while the command was under way; `rebooted`: the host has booted since."""

    command: str
    rebooted: bool
    what: str

    @property
    def in_words(self) -> str:
        """A sentence on what happened, and the command that continues it."""
        went = "this host went down" if self.rebooted else "its process was killed"
        return f"{went} while a {self.what} was under way; this continues it: `{self.command}`"


def left_under_way(results: Results, machine: str) -> list[LeftOver]:
    """Return this user's commands on this machine that did not end in order and are under way no more.

    Only this user's notes are read, because the user is asked to type the command again, and anybody else who shares
    the folder could have written any command.
    """
    return [left for _, left in _all_left(results, machine)]


def _all_left(results: Results, machine: str) -> list[tuple[Path, LeftOver]]:
    return [
        (file, LeftOver(one.command, one.process.boot != boot_id(), one.what))
        for file, one in _notes(results, machine, mine=True)
        if not one.process.alive()
    ]


def _notes(results: Results, machine: str = "", *, mine: bool = False) -> Iterator[tuple[Path, UnderWay]]:
    """Yield each valid note with its file, of one machine or all, and of this user (`mine`) or all.

    Notes are checked carefully: anybody who shares the folder may have written them, and nearly every command reads
    them.
    """
    for file in sorted((results.folder / FOLDER).glob(f"{machine}*.under-way")):
        try:
            told = load_json(read_regular(file, LARGEST_NOTE, mine=mine))
            process, command, what = ProcessId(**told["process"]), told["command"], told.get("what", "campaign")
            doing, since = one_line(str(told.get("doing", "")))[:LONGEST_DOING], float(told.get("since", 0))
            if file.stat().st_uid != os.geteuid():
                # Quoted, so that another user's text does not pass for our own words, or for a command of ours.
                command, doing = (safe_text(str(one).replace("`", "'"), LONGEST_DOING) for one in (command, doing))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        numbers = all(type(one) is int and 0 < one < FAR for one in (process.pid, process.started)) and since < FAR
        if numbers and isinstance(process.boot, str) and isinstance(command, str) and what in WHATS:
            yield file, UnderWay(process, one_line(command), what, doing, since)
