"""Notes of what is under way on this machine, so that others can watch it, and what a crash leaves of it is known."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.files.json_bounds import load_json
from harness.base.files.storage import read_regular, write_json
from harness.base.text import one_line
from harness.evidence.records import Results
from harness.host.processes.processes import ProcessId, boot_id

FOLDER = "campaigns"
WHATS = ("campaign", "training")
# What a command does until it says more.
BEGINS = "looking at this host and at what was left"
LONGEST_DOING = 200
LARGEST_NOTE = 1 << 20
# No pid and no time since a boot comes near it.
FAR = 1 << 63


@dataclass(frozen=True)
class Note:
    """The note of this command. `others`: a sentence for each other command that is under way here."""

    file: Path
    content: dict[str, Any]
    others: tuple[str, ...] = ()

    def doing(self, text: str) -> None:
        """Note what takes its time now, outside of runs; nothing where `text` is empty."""
        # Whoever watches can do without it: a full disk ends no campaign here.
        with suppress(UserError, OSError):
            write_json(self.file, {**self.content, "doing": text, "since": time.time()})


@contextmanager
def noted_under_way(results: Results, machine: str, command: str, training: str | None = None) -> Iterator[Note]:
    """Note that a command is under way; the note stays where the process is killed or the host goes down.

    `training`: the name of the training that it is, in place of a campaign. There can be several of both at once. A
    campaign that begins takes away the notes of those that were left; what continues a training its state still names.
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
        f"also under way here: `{one.command}` (process {one.process.pid}); the two share this host"
        for _, one in _notes(results, machine)
        if one.process != me and one.process.alive()
    )
    try:
        yield Note(file, content, tuple(others))
    finally:
        file.unlink(missing_ok=True)


def note_file(results: Results, machine: str, name: str) -> Path:
    """Return where the note of what is called so on a machine is, from its start to an end in order."""
    return results.folder / FOLDER / f"{machine}.{name}.under-way"


@dataclass(frozen=True)
class UnderWay:
    """A command by its note. `doing`: what takes its time outside of runs, since `since`, in seconds since 1970."""

    process: ProcessId
    command: str
    what: str
    doing: str = ""
    since: float = 0.0

    def in_words(self, watch: str) -> str:
        """Return what is under way, and how to see it: by the command `watch`."""
        return f"under way here: `{self.command}` (process {self.process.pid}): {self.doing}; `{watch}` shows it"


def under_way(results: Results) -> list[UnderWay]:
    """Return the commands with this results folder of which the process is alive, and of this host."""
    return [one for _, one in _notes(results) if one.process.alive()]


@dataclass(frozen=True)
class LeftOver:
    """A command that was under way when its process went; `rebooted`: the host has booted since."""

    command: str
    rebooted: bool
    what: str = "campaign"

    @property
    def in_words(self) -> str:
        """Return what happened and how to go on."""
        went = "this host went down" if self.rebooted else "its process was killed"
        return f"{went} while a {self.what} was under way; this continues it: `{self.command}`"


def left_under_way(results: Results, machine: str) -> list[LeftOver]:
    """Return what this user had under way on this machine, and is not any more, though it did not end in order.

    Its command is to be typed again: that of somebody else who shares the folder could be any.
    """
    return [left for _, left in _all_left(results, machine)]


def _all_left(results: Results, machine: str) -> list[tuple[Path, LeftOver]]:
    return [
        (file, LeftOver(one.command, one.process.boot != boot_id(), one.what))
        for file, one in _notes(results, machine, mine=True)
        if not one.process.alive()
    ]


def _notes(results: Results, machine: str = "", *, mine: bool = False) -> Iterator[tuple[Path, UnderWay]]:
    """Yield each note with its file, of a machine or of all, and of this user or of all; none that is not as one is.

    Whoever shares the folder may have written it, and nearly every command reads it.
    """
    for file in sorted((results.folder / FOLDER).glob(f"{machine}*.under-way")):
        try:
            told = load_json(read_regular(file, LARGEST_NOTE, mine=mine))
            process, command, what = ProcessId(**told["process"]), told["command"], told.get("what", "campaign")
            doing, since = one_line(str(told.get("doing", "")))[:LONGEST_DOING], float(told.get("since", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        numbers = all(type(one) is int and 0 < one < FAR for one in (process.pid, process.started)) and since < FAR
        if numbers and isinstance(process.boot, str) and isinstance(command, str) and what in WHATS:
            yield file, UnderWay(process, one_line(command), what, doing, since)
