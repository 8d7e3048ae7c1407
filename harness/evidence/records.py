"""Run folders: the truth about what was run. Attempts are never overwritten."""

import contextlib
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from harness.base.errors import UserError
from harness.base.files.failpoints import reached
from harness.base.files.group_sharing import share_below
from harness.base.files.set_id import remove_set_id
from harness.base.files.storage import (
    cannot_be_written,
    is_shared,
    make_folder_durably,
    open_regular,
    sync_folder,
    unfinished,
)
from harness.base.files.tree_removal import opened_folder
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.host.disk_use import require_room
from harness.host.processes.processes import ProcessId

OfFolder = TypeVar("OfFolder", Intent, Record)

# Ends the campaign id of a training; what its attempts leave is for the training to remove.
TRAINING = "train"
# Its owner alone.
CLOSED = 0o700
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"


def check_run_id(run_id: str) -> None:
    """Refuse an id that is no name of a folder.

    Raises:
        UserError: saying what it may hold.
    """
    if not re.fullmatch(RUN_ID, run_id):
        raise UserError(f"--run-id {run_id!r}: use letters, digits, dots, dashes and underscores")


def is_of_training(campaign: str | None) -> bool:
    """Return whether runs with this campaign are the attempts of a training."""
    return (campaign or "").endswith(f"-{TRAINING}")


@dataclass(frozen=True)
class Results:
    """A results folder, which several hosts may share."""

    folder: Path

    @property
    def runs(self) -> Path:
        """The folder of the run folders."""
        return self.folder / "runs"

    @property
    def changed(self) -> Path:
        """The file with the ids of runs that changed after their record, a line each: indexes enter them again."""
        return self.folder / "changed-runs.txt"

    def note_changed(self, run_id: str) -> None:
        """Have every index of this folder enter a run again, whoever it belongs to; raises OSError."""
        with open_regular(self.changed, adding=True) as stream:
            stream.write(f"{run_id}\n".encode())

    @property
    def gpu_evidence(self) -> Path:
        """The folder of what `make gpu-evidence` wrote, here or on another machine; a folder in it for each time."""
        return self.folder / "gpu-evidence"

    def run_folder(self, run_id: str) -> Path:
        """Return the place of the folder of a run."""
        return self.runs / run_id

    def folder_of(self, run_id: str) -> RunFolder:
        """Return the folder of a run, with the names of what is in it."""
        return RunFolder(self.run_folder(run_id))

    def begin(self, intent: Intent) -> Path:
        """Make the run folder and write the intent, durably, before anything is started.

        Raises:
            UserError: when a run of that id was begun before, the folder cannot be written, or its disk is nearly full.
        """
        check_run_id(intent.run_id)
        require_room(self.runs)
        folder = self.run_folder(intent.run_id)
        # A folder gets its name when its intent is in it: a crash leaves a run that was begun, or none.
        unnamed = unfinished(folder)
        try:
            make_folder_durably(self.runs)
            # The app may make a file there that acts as its owner: while it runs no other user comes near it.
            unnamed.mkdir(mode=CLOSED)
            (unnamed / RunFolder.WORK).mkdir()
            RunFolder(unnamed).write(RunFolder.INTENT, intent)
            reached("run-begins")
            unnamed.rename(folder)
            sync_folder(self.runs)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise UserError(f"{folder}: this run was begun before; attempts are never overwritten") from None
            raise cannot_be_written(f"--results {self.folder}", error) from None
        finally:
            shutil.rmtree(unnamed, ignore_errors=True)
        reached("run-begun")
        return folder

    def finish(self, record: Record) -> None:
        """Write the record of a run that was begun, whatever the run did to its folder.

        Raises:
            UserError: when it cannot be written.
        """
        reached("record-begins")
        folder = self.folder_of(record.intent.run_id)
        folder.restore(record.intent)
        folder.write(RunFolder.RECORD, record)
        reached("record-written")
        self._open_to_others(folder)

    def _open_to_others(self, folder: RunFolder) -> None:
        """Let users see the folder of a run that is over who may see that of all runs, once nothing in it can harm."""
        # Who shares the folder of all runs may put a link, or another folder of this user's, in the place of this one.
        with contextlib.suppress(OSError), opened_folder(folder.path) as opened:
            os.stat(RunFolder.RECORD, dir_fd=opened, follow_symlinks=False)
            remove_set_id(opened)
            if is_shared(self.runs):
                share_below(opened)
            os.fchmod(opened, stat.S_IMODE(self.runs.stat().st_mode))

    def record(self, run_id: str) -> Record | None:
        """The record of a run; None where it has none. Raises UserError where that is damaged, or of another run."""
        record = self.folder_of(run_id).read_record()
        if record:
            self._check_own(run_id, record.intent)
        return record

    def records(self, damaged: list[str] | None = None) -> Iterator[Record]:
        """Every record, in the order of run ids.

        One that cannot be read is named in `damaged` and skipped; without that list it raises UserError.
        """
        return _readable(self.record, self.finished(), damaged)

    def finished(self) -> list[str]:
        """The ids of the runs that have a record."""
        return [run_id for run_id in self.begun() if self.has_record(run_id)]

    def unfinished(self, damaged: list[str] | None = None, among: Iterable[str] | None = None) -> Iterator[Intent]:
        """The intents without a record: running somewhere, or interrupted. Without `among` all runs are looked at.

        One that cannot be read is named in `damaged` and skipped; without that list it raises UserError.
        """
        begun = self.begun() if among is None else among
        return _readable(self.intent, (run_id for run_id in begun if not self.has_record(run_id)), damaged)

    def has_record(self, run_id: str) -> bool:
        """Return whether a run has its record."""
        return os.path.exists(f"{self.runs}/{run_id}/{RunFolder.RECORD}")  # noqa: PTH110 (ten thousand of them in no time)

    def imported(self, run_id: str) -> bool:
        """Return whether a run came with `matrix import` from another results folder."""
        return self.folder_of(run_id).imported.exists()

    def intent(self, run_id: str) -> Intent | None:
        """The intent of a run; None where there is none. Raises UserError where that is damaged, or of another run."""
        intent = self.folder_of(run_id).read_intent()
        if intent:
            self._check_own(run_id, intent)
        return intent

    def _check_own(self, run_id: str, intent: Intent) -> None:
        """Refuse what is of another run than its folder: what is done by its id is done there, wherever that leads."""
        if intent.run_id != run_id:
            raise UserError(
                f"{self.run_folder(run_id)}: holds run {intent.run_id!r}; give the folder that name, or move it away"
            )

    def begun(self, besides: Set[str] = frozenset()) -> list[str]:
        """The ids of all runs, but for those that are named.

        A folder with a dot in front of its name is not one yet, and what a link leads to none: who shares the folder
        may lay a link to any other folder of this user's.
        """
        try:
            with os.scandir(self.runs) as places:
                found = [place for place in places if place.name not in besides and not place.name.startswith(".")]
                return sorted([place.name for place in found if place.is_dir(follow_symlinks=False)])
        except FileNotFoundError:
            return []


def _readable(
    read: Callable[[str], OfFolder | None], run_ids: Iterable[str], damaged: list[str] | None
) -> Iterator[OfFolder]:
    for run_id in run_ids:
        try:
            found = read(run_id)
        except UserError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
        else:
            if found:
                yield found


def new_run_id(label: str) -> str:
    """An id that sorts by time and is never given twice."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(3)}-{label}"


def attempt_ids(run_id: str) -> Iterator[str]:
    """Yield the ids of the attempts at a run, without an end: the first is its own."""
    yield run_id
    yield from (f"{run_id}-again{attempt}" for attempt in count(2))


def owner_alive(intent: Intent) -> bool:
    """Return whether the harness that began a run on this machine still runs."""
    return ProcessId(intent.owner_pid, intent.owner_started, intent.host.boot_id).alive()
