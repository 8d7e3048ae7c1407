"""The folder of a run: this module alone knows its file names, reads its files and writes them.

No other module of the harness contains one of these names. Only the harness uses the folder, except the work folder in
it, to which the app writes and which alone is given to a container: `work_folder` owns its files.
"""

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePath
from typing import ClassVar, TypeVar

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.files.json_bounds import load_json
from harness.base.files.json_files import File
from harness.base.files.storage import ROOT, cannot_be_written, read_regular, unused, write_durably, write_json
from harness.base.files.tree_removal import clear_immutable_flags
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.text import safe_text
from harness.base.validation_errors import headline
from harness.evidence.files.app_files import Result
from harness.evidence.files.run_files import Intent, Record
from harness.evidence.files.temporary_folder import make_temporary_folder, remove_place, temporary_folder_of
from harness.evidence.files.work_folder import LARGEST, FilePlace, WorkFolder

# Largest note about a container, in bytes: an engine repeats the labels and variables of the image.
LARGEST_NOTE = 4 << 20

# Largest kernel log collected at a failure that is read, in bytes.
LARGEST_KERNEL_LOG = 4 << 20
# Largest intent or record, in bytes: a record contains a result, with a line for each of its numbers. As text it takes
# up to four times as much memory.
LARGEST_OWN_BYTES = 16 << 20

Read = TypeVar("Read", bound=File)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: the files that the harness itself writes there, and the app's part, `work`."""

    path: Path

    INTENT: ClassVar = "intent.json"
    RECORD: ClassVar = "record.json"
    IMPORTED: ClassVar = "imported.json"
    STRIKES: ClassVar = "strikes.jsonl"
    LOG: ClassVar = "log.txt"
    VERIFICATION_LOG: ClassVar = "verification.txt"
    PROBE_LOG: ClassVar = "probe-gpu{gpu}{number}.txt"
    PROCESS: ClassVar = "process.json"
    CONTAINER: ClassVar = "container-{log}{number}.json"
    # The whole output of a container that lost its harness; what the harness had copied before is in the run's own log.
    RECOVERED_LOG: ClassVar = "recovered.txt"
    # What the driver reported about the GPUs while the run used them.
    GPU_SENSORS: ClassVar = "gpu-sensors.jsonl"
    # For `matrix watch`: how long the place that a run is at may take.
    STALL: ClassVar = "stall.json"
    # Evidence collected at a failure, and the steps of checking the GPUs after it.
    FAILURE: ClassVar = "failure"
    FAILURE_INDEX: ClassVar = "failure/index.json"
    HEALTH: ClassVar = "failure/health.json"
    FIRST_STACKS: ClassVar = "failure/stacks-1.txt"
    SECOND_STACKS: ClassVar = "failure/stacks-2.txt"
    PROCESSES: ClassVar = "failure/processes.txt"
    PY_SPY: ClassVar = "failure/py-spy.txt"
    KERNEL_LOG: ClassVar = "failure/kernel-log.txt"
    GPUS: ClassVar = "failure/gpus.json"
    MEMORY_OWNERS: ClassVar = "failure/memory-owners.json"
    MEMORY_GROUP: ClassVar = "failure/cgroup.json"
    INSPECTED: ClassVar = "failure/container.json"
    # The work folder, which is the app's, and copies of what the app left, which it cannot reach.
    WORK: ClassVar = "work"
    KEPT_RESULT: ClassVar = "kept/result.json"
    KEPT: ClassVar = "kept"
    KEPT_VERIFICATION: ClassVar = "kept/verification.json"
    KEPT_MODEL: ClassVar = "kept/model-{number}.pt"
    KEPT_STATE: ClassVar = "kept/state-{number}.pt"
    KEPT_PRODUCT: ClassVar = "kept/product-{number}"
    # The work folder of the verification, which the training processes cannot reach.
    VERIFYING: ClassVar = "verifying"
    # Checkpoints of a program of the user's own from which it did not resume.
    LEFT_OUT: ClassVar = "left-out"
    # Files of earlier harnesses, whose runs were verified by their own app.
    MODEL_CHECK_LOG: ClassVar = "check-model.txt"
    REFERENCE_LOG: ClassVar = "reference.txt"
    KEPT_REFERENCE: ClassVar = "kept/reference.json"

    # The statement of what is to be run, durable before the start.
    intent = FilePlace(INTENT)
    # The statement about the run.
    record = FilePlace(RECORD)
    # Where a run came from that `matrix import` brought.
    imported = FilePlace(IMPORTED)
    # The decisions of a person on whether the run counts.
    strikes = FilePlace(STRIKES)
    # The output of the processes that train.
    log = FilePlace(LOG)
    # The output of the process that verifies the run.
    verification_log = FilePlace(VERIFICATION_LOG)
    # The folder of the copies that the app cannot reach.
    kept = FilePlace(KEPT)
    # The checkpoints from which a program did not resume.
    left_out = FilePlace(LEFT_OUT)
    # The output of a container that lost its harness.
    recovered_log = FilePlace(RECOVERED_LOG)
    # The identity of the process that was started last.
    process = FilePlace(PROCESS)
    # The folder of the evidence collected at a failure.
    failure = FilePlace(FAILURE)

    @property
    def work(self) -> WorkFolder:
        """The part that the app wrote; in a run of an earlier harness, which had no work folder, the run folder."""
        own = self.new_work
        return own if stat.S_ISDIR(_mode(Path(own.path))) else WorkFolder(self.path)

    @property
    def new_work(self) -> WorkFolder:
        """The part that the app of a new run writes. The folder is made with the intent, before anything is started."""
        return WorkFolder(self.path / self.WORK)

    @property
    def verifying(self) -> WorkFolder:
        """The work folder of the process that verifies the run."""
        return WorkFolder(self.path / self.VERIFYING)

    @cached_property
    def temporary(self) -> Path:
        """TMPDIR of a process on this host: outside the run folder, because its path has to be short.

        It stays the one that the processes get, although another user may take it before it is made.
        """
        return temporary_folder_of(self.path)

    @property
    def stacks(self) -> tuple[PurePath, ...]:
        """All files of Python stacks that exist: those of the ranks, and those collected at a failure."""
        work = self.work
        collected = map(self.named, (self.FIRST_STACKS, self.SECOND_STACKS, self.PY_SPY))
        return (*(work.path / name for name in work.stacks().values()), *(file for file in collected if file.exists()))

    def name_in_work(self, name: str) -> str:
        """Return the name, relative to the run folder, of a file that the app wrote."""
        return (self.work.path / name).relative_to(self.path).as_posix()

    def kept_model(self, number: int) -> Path:
        """Return the place of the copy of a model; number 1 was trained first."""
        return self.path / self.KEPT_MODEL.format(number=number)

    def kept_state(self, number: int) -> Path:
        """Return the place of the copy of a state of the model with this number."""
        return self.path / self.KEPT_STATE.format(number=number)

    def kept_product(self, number: int) -> Path:
        """Return the place of the copy of a product of a program of the user's own; numbers count from 1."""
        return self.path / self.KEPT_PRODUCT.format(number=number)

    def named(self, name: str) -> Path:
        """Return the place of a file that has one of the names above."""
        return self.path / name

    def new_probe_log(self, gpu: int) -> Path:
        """Return the file for the output of the next probe of a GPU, given by its index."""
        return unused(self.path / self.PROBE_LOG.format(gpu=gpu, number=""))

    def note_of(self, log: Path, *, contained: bool) -> Path:
        """Return the file for the note about the process, or the container, whose output goes to `log`."""
        return self.path / self.CONTAINER.format(log=log.stem, number="") if contained else self.process

    def read_containers(self) -> tuple[str, ...]:
        """Return the ids of the run's containers, as far as they were noted and the notes can be read."""
        found = []
        for note in self.path.glob(self.CONTAINER.format(log="*", number="")):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                found.append(str(load_json(read_regular(note, LARGEST_NOTE))["Id"]))
        return tuple(found)

    def read_intent(self) -> Intent | None:
        """Return the intent; None where there is none.

        Raises:
            UserError: when the file is damaged.
        """
        return _read(self.intent, Intent)

    def read_record(self) -> Record | None:
        """Return the record; None where there is none.

        Raises:
            UserError: when the file is damaged.
        """
        return _read(self.record, Record)

    def note_stall(self, phase: str, done: int, limit: float) -> None:
        """Note how long the run may stall at this place, in seconds; without the note, only watchers miss something."""
        with contextlib.suppress(UserError, OSError):
            self.write(self.STALL, {"schema": 2, "phase": phase, "done": done, "limit": limit})

    def stall_limit(self, phase: str, done: int) -> float | None:
        """Return how long the run may stall at this place, in seconds; None where that was not noted."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            note = load_json(read_regular(self.named(self.STALL), LARGEST_NOTE))
            if (note["phase"], note["done"]) == (phase, done):
                return float(note["limit"])
        return None

    def read_kernel_log(self) -> list[str]:
        """Return the lines of the kernel log collected at a failure; an empty list where it is missing or too large."""
        with contextlib.suppress(FileNotFoundError, NotAFileError):
            content = UntrustedTree(self.path).read(self.KERNEL_LOG, LARGEST_KERNEL_LOG)
            return content.decode(errors="replace").split("\n")
        return []

    @property
    def is_mine(self) -> bool:
        """Return whether this user, or root, made the run on this host."""
        try:
            return self.record.lstat().st_uid in (os.geteuid(), ROOT) and not self.imported.exists()
        except OSError:
            return False

    def for_display(self, record: Record) -> Record:
        """Return the run's record as it may be shown; what another user or host wrote is quoted, without commands."""
        return record if self.is_mine else record.quoted()

    def write(self, name: str, content: object) -> None:
        """Write a file that has one of the names above, durably: a text as it is, anything else as JSON.

        Raises:
            UserError: when the folder cannot be written to.
        """
        if isinstance(content, File):
            write_durably(self.path / name, (content.model_dump_json(indent=2, by_alias=True) + "\n").encode())
        elif isinstance(content, str):
            write_durably(self.path / name, content.encode())
        else:
            write_json(self.path / name, content)

    def restore(self, intent: Intent) -> None:
        """Restore the run folder, and the intent in it, because a process of the run may have moved or changed them.

        Anything else in the place of the folder, the intent or the record is removed. A process in a container cannot
        do that.

        Raises:
            UserError: when the intent cannot be written.
        """
        clear_immutable_flags(self.path)
        kind = _mode(self.path)
        if kind and not stat.S_ISDIR(kind):
            remove_place(self.path)
        for file in (self.intent, self.record):
            kind = _mode(file)
            if kind and not stat.S_ISREG(kind):
                remove_place(file)
        with contextlib.suppress(UserError):
            if self.read_intent() == intent:
                return
        self.write(self.INTENT, intent)

    def make_places(self) -> None:
        """Make HOME, TMPDIR and the caches of the processes of a new run.

        Raises:
            UserError: when another user's files are where the temporary folder should be.
        """
        make_temporary_folder(self.temporary)
        for place in self.new_work.places:
            Path(place).mkdir(parents=True, exist_ok=True)

    def make_links(self, links: Mapping[str, str]) -> None:
        """Make the working folder of a program of the user's own, with a link to each thing that it reads there.

        A file that an earlier attempt left there under the name of a link is kept.

        Raises:
            UserError: when the folder cannot be made.
        """
        try:
            Path(self.new_work.program).mkdir(exist_ok=True)
            for name, target in links.items():
                place = Path(self.new_work.path) / name
                place.parent.mkdir(exist_ok=True)
                if place.is_symlink():
                    # A link of an earlier attempt is replaced, because the source may have been edited since.
                    place.unlink()
                with contextlib.suppress(FileExistsError):
                    place.symlink_to(target)
        except OSError as error:
            raise cannot_be_written(self.new_work.path, error) from None

    def make_verifying(self) -> None:
        """Make the work folder of the verification, after the run's own processes have ended.

        Raises:
            UserError: when the folder cannot be made.
        """
        remove_place(Path(self.verifying.path))
        make_temporary_folder(self.temporary)
        for place in self.verifying.places:
            Path(place).mkdir(parents=True, exist_ok=True)

    def remove_places(self, *, all_of_it: bool) -> tuple[str, ...]:
        """Remove the temporary folder; with `all_of_it` also HOME, caches, checkpoints and models that have a copy.

        Return what cannot be removed, in words.
        """
        left = [remove_place(self.temporary)]
        if all_of_it:
            work = self.work
            # By the run folder's own name: another user who can write to the folder above may put a link in its place.
            runs = UntrustedTree(self.path.parent.resolve())
            left.append(_in_words(self.VERIFYING, runs.remove(f"{self.path.name}/{self.VERIFYING}")))
            names = [WorkFolder.SCRATCH, WorkFolder.STATES, *self._kept_twice()]
            with contextlib.suppress(FileNotFoundError, NotAFileError):
                made = work.tree.names(WorkFolder.OUTPUT)
                names += [f"{WorkFolder.OUTPUT}/{name}" for name in made if fnmatch(name, WorkFolder.CHECKPOINTS)]
            place = PurePath(self.path.name, self.name_in_work(""))
            left += [_in_words(name, runs.remove(place / name)) for name in names]
        return tuple(one for one in left if one)

    def _kept_twice(self) -> list[str]:
        """Return the names of the models in the work folder that have a copy in `kept`."""
        try:
            result = Result.parse(read_regular(self.named(self.KEPT_RESULT), LARGEST["result"]))
        except (OSError, ValidationError):
            return []
        files = [(PurePath(one.model.file).name, number) for number, one in enumerate(result.trainings, 1)]
        return [f"{WorkFolder.OUTPUT}/{name}" for name, number in files if name and self.kept_model(number).is_file()]


def _in_words(name: str, why: str | None) -> str | None:
    return f"{safe_text(name)} {why}" if why else None


def _mode(place: Path) -> int:
    try:
        return place.lstat().st_mode
    except OSError:
        return 0


def _read(file: Path, model: type[Read]) -> Read | None:
    try:
        return model.parse(read_regular(file, LARGEST_OWN_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        why = f"{error.strerror}; another user's run may be under way there"
        raise UserError(f"{file}: cannot be read: {why}") from None
    except (OSError, ValidationError) as error:
        raise UserError(f"{file}: is damaged: {headline(error)}; move its folder away") from None
