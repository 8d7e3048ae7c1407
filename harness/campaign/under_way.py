"""Notes of what is under way on this machine, so that what a crash or a reboot leaves of it can be told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.base.storage import read_regular, write_json
from harness.base.text import one_line
from harness.evidence.records import Results
from harness.host.processes import ProcessId, boot_id

FOLDER = "campaigns"
WHATS = ("campaign", "training")
# No pid and no time since a boot comes near it.
FAR = 1 << 63


@contextmanager
def noted_under_way(results: Results, machine: str, command: str, training: str | None = None) -> Iterator[list[str]]:
    """Note that a command is under way; the note stays where the process is killed or the host goes down.

    `training`: the name of the training that it is, in place of a campaign. There can be several of both at once; each
    other one is named in a sentence. A campaign that begins takes away the notes of those that were left.
    """
    me = ProcessId.mine()
    file = note_file(results, machine, training or f"{me.pid}-{me.started}")
    what = "training" if training else "campaign"
    write_json(file, {"schema": 2, "command": command, "process": asdict(me), "what": what})
    if not training:
        for other, left in _all_left(results, machine):
            if left.what == what:
                other.unlink(missing_ok=True)
    try:
        yield [
            f"also under way here: `{command}` (process {process.pid}); the two share this host"
            for _, process, command, _ in _notes(results, machine)
            if process != me and process.alive()
        ]
    finally:
        file.unlink(missing_ok=True)


def note_file(results: Results, machine: str, name: str) -> Path:
    """Return where the note of what is called so on a machine is, from its start to an end in order."""
    return results.folder / FOLDER / f"{machine}.{name}.under-way"


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
    """Return what was under way on this machine and is not any more, though it did not end in order."""
    return [left for _, left in _all_left(results, machine)]


def _all_left(results: Results, machine: str) -> list[tuple[Path, LeftOver]]:
    return [
        (file, LeftOver(command, process.boot != boot_id(), what))
        for file, process, command, what in _notes(results, machine)
        if not process.alive()
    ]


def _notes(results: Results, machine: str) -> Iterator[tuple[Path, ProcessId, str, str]]:
    """Yield each note: its file, the process, the command, and what that is; none that is not as one is written.

    Whoever shares the folder may have written it, and nearly every command reads it.
    """
    for file in sorted((results.folder / FOLDER).glob(f"{machine}*.under-way")):
        try:
            told = json.loads(read_regular(file))
            process, command, what = ProcessId(**told["process"]), told["command"], told.get("what", "campaign")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        numbers = all(type(one) is int and 0 < one < FAR for one in (process.pid, process.started))
        if numbers and isinstance(process.boot, str) and isinstance(command, str) and what in WHATS:
            yield file, process, one_line(command), what
