"""A note of the campaign that is under way on this machine: what a crash or a reboot leaves of it can be told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from harness.base.storage import write_json
from harness.evidence.records import Results
from harness.host.processes import ProcessId, boot_id

FOLDER = "campaigns"


@contextmanager
def noted_under_way(results: Results, machine: str, command: str) -> Iterator[None]:
    """Note that a command is under way; the note stays where the process is killed or the host goes down."""
    file = results.folder / FOLDER / f"{machine}.under-way"
    write_json(file, {"schema": 2, "command": command, "process": asdict(ProcessId.mine())})
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


@dataclass(frozen=True)
class LeftOver:
    """A command that was under way when its process went; `rebooted`: the host has booted since."""

    command: str
    rebooted: bool

    @property
    def in_words(self) -> str:
        """Return what happened and how to go on."""
        went = "this host went down" if self.rebooted else "its process was killed"
        return f"{went} while a campaign was under way; this continues it: `{self.command}`"


def left_under_way(results: Results, machine: str) -> LeftOver | None:
    """Return what was under way on this machine and is not any more, though it did not end in order."""
    file = results.folder / FOLDER / f"{machine}.under-way"
    try:
        told = json.loads(file.read_bytes())
        process = ProcessId(**told["process"])
        command = str(told["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if process.alive() else LeftOver(command, process.boot != boot_id())
