"""The results folder: its run folders, intents and records. Attempts are never overwritten."""

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

# Ends the campaign id of a training; only the training removes what its attempts leave.
TRAINING = "train"
# Mode of a folder that only its owner may enter.
CLOSED = 0o700
LONGEST_RUN_ID = 120
RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_RUN_ID - 1}}}")


def check_run_id(run_id: str) -> None:
    """Refuse an id that cannot be the name of a folder.

    Raises:
        UserError: saying which characters an id may have, and how many.
    """
    if len(run_id) > LONGEST_RUN_ID:
        raise UserError(
            f"{run_id[:40]}...: an id of a run has {LONGEST_RUN_ID} characters at most; shorten the names of its stack "
            "and preset, or --run-id if you gave it"
        )
    if not RUN_ID.fullmatch(run_id):
        raise UserError(f"--run-id {run_id!r}: use letters, digits, dots, dashes and underscores")


def is_of_training(campaign: str | None) -> bool:
    """Return whether runs of this campaign are attempts of a training."""
    return (campaign or "").endswith(f"-{TRAINING}")


@dataclass(frozen=True)
class Results:
    """A results folder, which several hosts may share."""

    folder: Path

    @property
    def runs(self) -> Path:
        """The folder that contains the run folders."""
        return self.folder / "runs"

    @property
    def changed(self) -> Path:
        """The file with the ids of runs that changed after their record, one a line: every index enters them again."""
        return self.folder / "changed-runs.txt"

    def note_changed(self, run_id: str) -> None:
        """Make every index of this results folder, of any user, enter a run again; raises OSError."""
        with open_regular(self.changed, adding=True) as stream:
            stream.write(f"{run_id}\n".encode())

    @property
    def gpu_evidence(self) -> Path:
        """The folder of the files of `make gpu-evidence`, from any machine, with one folder for each time it ran."""
        return self.folder / "gpu-evidence"

    def run_folder(self, run_id: str) -> Path:
        """Return the place of the folder of a run."""
        return self.runs / run_id

    def folder_of(self, run_id: str) -> RunFolder:
        """Return the folder of a run, with the names of its files."""
        return RunFolder(self.run_folder(run_id))

    def begin(self, intent: Intent) -> Path:
        """Make the run folder and write the intent, durably, before anything is started.

        Raises:
            UserError: when a run with this id was begun before, the folder cannot be written, or its disk is nearly
                full.
        """
        check_run_id(intent.run_id)
        require_room(self.runs)
        folder = self.run_folder(intent.run_id)
        # The folder gets its name only once the intent is in it, so that a crash leaves a run that was begun, or none.
        unnamed = unfinished(folder)
        try:
            make_folder_durably(self.runs, protect=True)
            # While the run lasts no other user may enter: the app may make a setuid file there, which acts as its
            # owner.
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
            UserError: when the record cannot be written.
            pydantic.ValidationError: when it could not be read again: the result is within the bounds of a file, but
                the record that contains it is not.
        """
        reached("record-begins")
        content = record.model_dump_json(indent=2, by_alias=True)
        Record.parse(content)
        folder = self.folder_of(record.intent.run_id)
        folder.restore(record.intent)
        folder.write(RunFolder.RECORD, f"{content}\n")
        reached("record-written")
        self._open_to_others(folder)

    def _open_to_others(self, folder: RunFolder) -> None:
        """Open the folder of a finished run to the users who may see all runs, once no file in it can harm them."""
        # A user who can write to the folder of all runs may put a link, or another folder of this user's, in place of
        # this one.
        with contextlib.suppress(OSError), opened_folder(folder.path) as opened:
            os.stat(RunFolder.RECORD, dir_fd=opened, follow_symlinks=False)
            remove_set_id(opened)
            if is_shared(self.runs):
                share_below(opened)
            os.fchmod(opened, stat.S_IMODE(self.runs.stat().st_mode))

    def record(self, run_id: str) -> Record | None:
        """Return the record of a run; None where it has none. Raises UserError if it is damaged or of another run."""
        record = self.folder_of(run_id).read_record()
        if record:
            self._check_own(run_id, record.intent)
        return record

    def readable_record(self, run_id: str) -> Record | None:
        """Return the record of a run; None where it has none, or where it is damaged, which is said elsewhere."""
        with contextlib.suppress(UserError):
            return self.record(run_id)
        return None

    def records(self, damaged: list[str] | None = None) -> Iterator[Record]:
        """Yield every record, in the order of run ids.

        A record that cannot be read is named in `damaged` and skipped; without that list UserError is raised.
        """
        return _readable(self.record, self.finished(), damaged)

    def finished(self) -> list[str]:
        """Return the ids of the runs that have a record."""
        return [run_id for run_id in self.begun() if self.has_record(run_id)]

    def unfinished(self, damaged: list[str] | None = None, among: Iterable[str] | None = None) -> Iterator[Intent]:
        """Yield the intents without a record, of runs that are running somewhere or were interrupted.

        `among`: the ids of the runs to look at; by default all. An intent that cannot be read is named in `damaged` and
        skipped; without that list UserError is raised.
        """
        begun = self.begun() if among is None else among
        return _readable(self.intent, (run_id for run_id in begun if not self.has_record(run_id)), damaged)

    def has_record(self, run_id: str) -> bool:
        """Return whether a run has a record."""
        return os.path.exists(f"{self.runs}/{run_id}/{RunFolder.RECORD}")  # noqa: PTH110 (ten thousand of them in no time)

    def imported(self, run_id: str) -> bool:
        """Return whether a run was imported from another results folder by `matrix import`."""
        return self.folder_of(run_id).imported.exists()

    def intent(self, run_id: str) -> Intent | None:
        """Return the intent of a run; None where there is none. Raises UserError if it is damaged or of another run."""
        intent = self.folder_of(run_id).read_intent()
        if intent:
            self._check_own(run_id, intent)
        return intent

    def _check_own(self, run_id: str, intent: Intent) -> None:
        """Refuse an intent of another run than the folder's: its id would lead all further work to another folder."""
        if intent.run_id != run_id:
            raise UserError(
                f"{self.run_folder(run_id)}: holds run {intent.run_id!r}; give the folder that name, or move it away"
            )

    def begun(self, besides: Set[str] = frozenset()) -> list[str]:
        """Return the ids of all runs, except those in `besides`.

        A folder whose name begins with a dot is not a run yet. One whose name is no id is ignored, because that name
        could pass for our own words, and so are links, because a user who can write to the folder may set a link to
        any other folder of this user's.
        """
        try:
            with os.scandir(self.runs) as places:
                found = [place for place in places if place.name not in besides and RUN_ID.fullmatch(place.name)]
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
    """Return a new unique id that sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(3)}-{label}"


def attempt_ids(run_id: str) -> Iterator[str]:
    """Yield the ids of the attempts at a run, without end; the first one is the run's own id."""
    yield run_id
    yield from (f"{run_id}-again{attempt}" for attempt in count(2))


def owner_alive(intent: Intent) -> bool:
    """Return whether the harness that began a run on this machine still runs."""
    return ProcessId(intent.owner_pid, intent.owner_started, intent.host.boot_id).alive()
