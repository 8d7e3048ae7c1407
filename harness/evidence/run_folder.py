"""The folder of a run: the one owner of its file names, what is read from it and written to it.

No other module of the harness has one of these names in its text. What the app writes is in `work_folder`.
"""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.json_files import File
from harness.base.storage import unused, write_durably, write_json
from harness.evidence.app_files import ModelCheck
from harness.evidence.run_files import Intent, Record
from harness.evidence.work_folder import WorkFolder

# Loader workers put sockets under TMPDIR, and the path of a socket has at most 107 characters. A longer TMPDIR does not
# fail: it leaves the training waiting for its first batch for ever.
LONGEST_TEMPORARY = 64

Read = TypeVar("Read", bound=File)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: what the harness itself writes there, and the part that the app writes, `work`."""

    path: Path

    INTENT: ClassVar = "intent.json"
    RECORD: ClassVar = "record.json"
    IMPORTED: ClassVar = "imported.json"
    LOG: ClassVar = "log.txt"
    MODEL_CHECK_LOG: ClassVar = "check-model.txt"
    REFERENCE_LOG: ClassVar = "reference.txt"
    PROBE_LOG: ClassVar = "probe-gpu{gpu}{number}.txt"
    PROCESS: ClassVar = "process.json"
    CONTAINER: ClassVar = "container-{log}{number}.json"
    # The whole output of a container that lost its harness; what that had copied of it is in the run's own log.
    RECOVERED_LOG: ClassVar = "recovered.txt"
    # Evidence collected at a failure, and what was seen of the GPUs after it.
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

    @property
    def work(self) -> WorkFolder:
        """The part that the app writes."""
        return WorkFolder(self.path)

    @property
    def intent(self) -> Path:
        """The statement of what is to be run; durable before the start."""
        return self.path / self.INTENT

    @property
    def record(self) -> Path:
        """The statement about the run."""
        return self.path / self.RECORD

    @property
    def imported(self) -> Path:
        """The origin of a run that `matrix import` brought."""
        return self.path / self.IMPORTED

    @property
    def log(self) -> Path:
        """The output of the processes that train."""
        return self.path / self.LOG

    @property
    def model_check_log(self) -> Path:
        """The output of the process that loads the model."""
        return self.path / self.MODEL_CHECK_LOG

    @property
    def reference_log(self) -> Path:
        """The output of the process that computes the reference."""
        return self.path / self.REFERENCE_LOG

    @property
    def recovered_log(self) -> Path:
        """The output of a container that lost its harness."""
        return self.path / self.RECOVERED_LOG

    @property
    def process(self) -> Path:
        """The identity of the process that was started last."""
        return self.path / self.PROCESS

    @property
    def failure(self) -> Path:
        """The folder of the evidence that was collected at a failure."""
        return self.path / self.FAILURE

    @property
    def temporary(self) -> Path:
        """TMPDIR of a process on this host: short, so not in this folder."""
        name = f"matrix-{hashlib.sha256(str(self.path.absolute()).encode()).hexdigest()[:12]}"
        usual = Path(tempfile.gettempdir()) / name
        return usual if len(str(usual)) <= LONGEST_TEMPORARY else Path("/tmp") / name  # noqa: S108

    @property
    def stacks(self) -> tuple[Path, ...]:
        """Every file of Python stacks there is: those of the ranks, and those collected at a failure."""
        collected = map(self.named, (self.FIRST_STACKS, self.SECOND_STACKS, self.PY_SPY))
        return tuple(file for file in (*self.work.stacks().values(), *collected) if file.exists())

    def named(self, name: str) -> Path:
        """Return the place of a file by one of the names above."""
        return self.path / name

    def new_probe_log(self, gpu: int) -> Path:
        """Return where the next probe of a GPU, by its index, writes its output."""
        return unused(self.path / self.PROBE_LOG.format(gpu=gpu, number=""))

    def note_of(self, log: Path, *, contained: bool) -> Path:
        """Return where to note what is known of the process, or of the container, whose output goes to `log`."""
        return self.path / self.CONTAINER.format(log=log.stem, number="") if contained else self.process

    def read_intent(self) -> Intent | None:
        """Return the intent; None where there is none.

        Raises:
            UserError: when it is damaged.
        """
        return _read(self.intent, Intent)

    def read_record(self) -> Record | None:
        """Return the record; None where there is none.

        Raises:
            UserError: when it is damaged.
        """
        return _read(self.record, Record)

    def read_model_check(self) -> ModelCheck | None:
        """Return what `vpoc check-model --json` printed, whatever is around it; None where it is not that."""
        try:
            text = self.model_check_log.read_text(encoding="utf-8", errors="replace")
            return ModelCheck.parse(text[text.find("{") : text.rfind("}") + 1])
        except (OSError, ValidationError):
            return None

    def write(self, name: str, content: object) -> None:
        """Write a file by one of the names above, durably: a text as it is, anything else as JSON.

        Raises:
            UserError: when the folder cannot be written to.
        """
        if isinstance(content, File):
            write_durably(self.path / name, (content.model_dump_json(indent=2, by_alias=True) + "\n").encode())
        elif isinstance(content, str):
            write_durably(self.path / name, content.encode())
        else:
            write_json(self.path / name, content)

    def make_places(self) -> None:
        """Make HOME, TMPDIR and caches of the processes.

        Raises:
            UserError: when another's files are where the temporary folder should be.
        """
        # A run folder is new, so what is there already was left by a crash.
        shutil.rmtree(self.temporary, ignore_errors=True)
        try:
            self.temporary.mkdir(mode=0o700)
        except OSError as error:
            raise UserError(f"{self.temporary}: cannot be made: {error.strerror}; remove what is there") from None
        for place in self.work.places:
            place.mkdir(parents=True, exist_ok=True)

    def remove_places(self, *, all_of_it: bool) -> None:
        """Remove the temporary folder and, with `all_of_it`, HOME, caches and checkpoints too."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        if all_of_it:
            for needless in (self.work.scratch, *self.work.output.glob(WorkFolder.CHECKPOINTS)):
                shutil.rmtree(needless, ignore_errors=True)


def _read(file: Path, model: type[Read]) -> Read | None:
    try:
        return model.parse(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise UserError(f"{file}: is damaged: {str(error).splitlines()[0]}; move its folder away") from None
