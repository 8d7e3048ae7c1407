"""Run folders: the truth about what was run. Attempts are never overwritten."""

import errno
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.base.errors import UserError
from harness.base.failpoints import reached
from harness.base.storage import make_folder_durably, sync_folder, unfinished, write_durably
from harness.evidence.run_files import Intent, Record
from harness.host.processes import ProcessId

INTENT = "intent.json"
RECORD = "record.json"
IMPORTED = "imported.json"
# Ends the campaign id of a training to the end; what its attempts leave is its own to remove.
TRAINING = "train"
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"

File = TypeVar("File", bound=BaseModel)


def check_run_id(run_id: str) -> None:
    """Refuse an id that is no name of a folder.

    Raises:
        UserError: saying what it may hold.
    """
    if not re.fullmatch(RUN_ID, run_id):
        raise UserError(f"--run-id {run_id!r}: use letters, digits, dots, dashes and underscores")


@dataclass(frozen=True)
class Results:
    """A results folder, which several hosts may share."""

    folder: Path

    @property
    def runs(self) -> Path:
        """The folder of the run folders."""
        return self.folder / "runs"

    def run_folder(self, run_id: str) -> Path:
        """The folder of a run."""
        return self.runs / run_id

    def begin(self, intent: Intent) -> Path:
        """Make the run folder and write the intent, durably, before anything is started.

        Raises:
            UserError: when a run of that id was begun before, or the folder cannot be written.
        """
        check_run_id(intent.run_id)
        folder = self.run_folder(intent.run_id)
        # A folder gets its name when its intent is in it: a crash leaves a run that was begun, or none.
        unnamed = unfinished(folder)
        try:
            make_folder_durably(self.runs)
            shutil.rmtree(unnamed, ignore_errors=True)
            unnamed.mkdir()
            _write(unnamed / INTENT, intent)
            reached("run-begins")
            unnamed.rename(folder)
            sync_folder(self.runs)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise UserError(f"{folder}: this run was begun before; attempts are never overwritten") from None
            raise UserError(f"{folder}: cannot be made: {error.strerror}; choose another --results") from None
        finally:
            shutil.rmtree(unnamed, ignore_errors=True)
        reached("run-begun")
        return folder

    def finish(self, record: Record) -> None:
        """Write the record of a run that was begun."""
        reached("record-begins")
        _write(self.run_folder(record.intent.run_id) / RECORD, record)
        reached("record-written")

    def record(self, run_id: str) -> Record | None:
        """The record of a run; None where it has none."""
        return _read(self.run_folder(run_id) / RECORD, Record)

    def records(self, damaged: list[str] | None = None) -> Iterator[Record]:
        """Every record, in the order of run ids.

        One that cannot be read is told in `damaged` and passed over; without that list it raises UserError.
        """
        for run_id in self.finished():
            try:
                record = self.record(run_id)
            except UserError as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
            else:
                if record:
                    yield record

    def finished(self) -> list[str]:
        """The ids of the runs that have a record."""
        return [run_id for run_id in self.begun() if self.has_record(run_id)]

    def unfinished(self, damaged: list[str] | None = None, among: Iterable[str] | None = None) -> Iterator[Intent]:
        """The intents without a record: running somewhere, or interrupted. Without `among` all runs are looked at.

        One that cannot be read is told in `damaged` and passed over; without that list it raises UserError.
        """
        for run_id in self.begun() if among is None else among:
            if self.has_record(run_id):
                continue
            try:
                intent = self.intent(run_id)
            except UserError as error:
                if damaged is None:
                    raise
                damaged.append(str(error))
            else:
                if intent:
                    yield intent

    def has_record(self, run_id: str) -> bool:
        """Whether a run has its record."""
        return os.path.exists(f"{self.runs}/{run_id}/{RECORD}")  # noqa: PTH110 (ten thousand of them in no time)

    def imported(self, run_id: str) -> bool:
        """Whether a run came with `matrix import` from another results folder."""
        return (self.run_folder(run_id) / IMPORTED).exists()

    def intent(self, run_id: str) -> Intent | None:
        """The intent of a run; None where there is none."""
        return _read(self.run_folder(run_id) / INTENT, Intent)

    def begun(self) -> list[str]:
        """The ids of all runs. A folder with a dot in front of its name is not one yet."""
        try:
            with os.scandir(self.runs) as places:
                return sorted(place.name for place in places if not place.name.startswith(".") and place.is_dir())
        except FileNotFoundError:
            return []


def new_run_id(label: str) -> str:
    """An id that sorts by time and is never given twice."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{token_hex(3)}-{label}"


def _write(file: Path, value: BaseModel) -> None:
    write_durably(file, (value.model_dump_json(indent=2, by_alias=True) + "\n").encode())


def _read(file: Path, model: type[File]) -> File | None:
    try:
        return model.model_validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise UserError(f"{file}: is damaged: {str(error).splitlines()[0]}; move its folder away") from None


def owner_alive(intent: Intent) -> bool:
    """Whether the harness that began a run on this machine still runs."""
    return ProcessId(intent.owner_pid, intent.owner_started, intent.host.boot_id).alive()
