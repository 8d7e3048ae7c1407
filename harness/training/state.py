"""The state of trainings that have no model yet: one file in `results/trainings/` for each place of a model."""

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from harness.base.durations import when
from harness.base.errors import InUseError, UserError
from harness.base.files.hashes import json_hash
from harness.base.files.json_files import Moment, Versioned
from harness.base.files.shared_locks import lock_at_once
from harness.base.files.storage import (
    AnotherUsersError,
    make_folder_durably,
    open_regular,
    read_regular,
    sync_folder,
    write_durably,
)
from harness.base.text import one_line
from harness.base.wording import many
from harness.campaign.under_way import note_file
from harness.evidence.records import TRAINING, Results, new_run_id
from harness.host.facts import HostFacts
from harness.matrix.stacks import ExecutorName
from harness.registry.tags.promotions import KnownGood
from harness.training.fallbacks import Begin

TRAININGS_FOLDER = "trainings"


class TrainingState(Versioned):
    """The state from which a training resumes, even after a reboot.

    Its attempts are runs; their records have the rest.
    """

    id: str
    key: str = Field(description="hash of what is to be trained; another key is another training")
    cell: str
    evidence: KnownGood | None
    executor: ExecutorName | None = Field(None, description="that of the answer's runs; null: as on any host")
    begins: tuple[Begin, ...] = Field((), description="why each attempt was begun, written before it is")
    began: Moment = Field(description="seconds since 1970")
    machine: str | None = Field(None, description="where `command` continues it; null: begun by an earlier harness")
    output: str | None = Field(None, description="folder for the model; once it is gone nobody wants the model")
    command: str | None = Field(None, description="command that continues it, as a shell takes it")

    def run_id(self, number: int) -> str:
        """Return the id of the run of an attempt; the first attempt has number 1."""
        return f"{self.id}-{number}"

    @property
    def run_ids(self) -> list[str]:
        """Return the ids of the runs of all attempts that were begun."""
        return [self.run_id(number) for number in range(1, len(self.begins) + 1)]


def new_state(key: str, cell: str, evidence: KnownGood | None, executor: ExecutorName | None = None) -> TrainingState:
    """Return the state of a new training without attempts."""
    return TrainingState(
        id=new_run_id(TRAINING), key=key, cell=cell, evidence=evidence, executor=executor, began=time.time()
    )


@dataclass(frozen=True)
class StateFile:
    """The state file of one training, which exists from its first attempt until there is a model."""

    file: Path

    def read(self, key: str) -> TrainingState | None:
        """Return the training that this user began here with the same key; None if there is none."""
        of_key = (_parsed(file) for file in (self.file, self._aside(key)))
        return next((training for training in of_key if training and training.key == key), None)

    def place(self, training: TrainingState) -> Path:
        """Return the file that holds a training which `read` returned."""
        of_it = _parsed(self.file)
        return self.file if of_it and of_it.key == training.key else self._aside(training.key)

    def unfinished_other(self, key: str) -> TrainingState | None:
        """Return the last training that this user began here with another key and that has no model yet."""
        begun = [_parsed(file) for file in (self.file, *self.file.parent.glob(f"{self.file.stem}-*.json"))]
        others = [one for one in begun if one and one.key != key and one.begins]
        return max(others, key=lambda one: one.began, default=None)

    def write(self, training: TrainingState) -> None:
        """Write the state durably; a training with another key is moved aside, where its own command finds it again."""
        other = _parsed(self.file)
        if other and other.key != training.key and other.begins:
            self.file.replace(self._aside(other.key))
            sync_folder(self.file.parent)
        write_durably(self.file, training.model_dump_json(indent=2, by_alias=True).encode())
        self._aside(training.key).unlink(missing_ok=True)

    def _aside(self, key: str) -> Path:
        return self.file.with_name(f"{self.file.stem}-{key[:16]}.json")

    def remove(self, training: TrainingState) -> None:
        """Remove the file that holds a training, because its model is in its final place."""
        self.place(training).unlink(missing_ok=True)
        sync_folder(self.file.parent)


@contextmanager
def open_state_file(results: Results, host: HostFacts, output: Path, name: str) -> Iterator[StateFile]:
    """Open the state file of the training of model `name` in `output`, locked for this process alone.

    Raises:
        UserError: when another process trains that model.
    """
    # Resolve the folder, so that a link or a relative path leads to the same state file.
    place = json_hash([host.machine, str(output.resolve()), name])[:16]
    file = results.folder / TRAININGS_FOLDER / f"{place}.json"
    make_folder_durably(file.parent)
    lock = file.with_suffix(".lock")
    with open_regular(lock, adding=True) as stream:
        # The runs do not inherit the lock: the harness ends orphaned runs before the training continues.
        if not lock_at_once(stream.fileno(), lock):
            raise InUseError(f"{output / name} is being trained by another process; `matrix watch` shows it")
        yield StateFile(file)


class UnfinishedTraining(NamedTuple):
    """A training that has no model and is not running, and its state file."""

    state: TrainingState
    file: Path

    @property
    def in_words(self) -> str:
        """Return in words where the training is, how far it got, and which commands continue it or drop it."""
        state, give_up = self.state, shlex.join(["rm", str(self.file)])
        begun = f"begun {when(state.began)}, {many(len(state.begins), 'attempt')}"
        none = f"a training is not finished ({begun}; `{give_up}` gives it up)"
        return one_line(f"{state.output}: {none}; this continues it: `{state.command}`")

    @property
    def brief(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {**self.state.model_dump(include={"output", "command", "begins", "began"}), "file": str(self.file)}


def unfinished_trainings(results: Results, machine: str) -> list[UnfinishedTraining]:
    """Return this user's trainings on a machine without a model that are neither running nor noted as killed."""
    found = []
    for file in sorted((results.folder / TRAININGS_FOLDER).glob("*.json")):
        with suppress(OSError, UserError):
            state = None if note_file(results, machine, file.stem).exists() else _parsed(file)
            here = state and state.machine == machine and Path(state.output or "").is_dir()
            if state and here and state.begins and state.command:
                found.append(UnfinishedTraining(state, file))
    return found


def _parsed(file: Path) -> TrainingState | None:
    """Return the state in a file of this user.

    Others may write to a shared folder, and a state names an image and checkpoints to use, and a command to type.

    Raises:
        UserError: when this version cannot read it; a new training in its place would cost what was trained.
    """
    try:
        return TrainingState.parse(read_regular(file, mine=True))
    except (FileNotFoundError, AnotherUsersError):
        return None
    except ValidationError:
        again = shlex.join(["rm", str(file)])
        raise UserError(
            f"{file}: is damaged, or the state of a training of a later version; continue it with that version, or "
            f"`{again}` gives up what was trained"
        ) from None
