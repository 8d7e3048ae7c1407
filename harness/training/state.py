"""The state of trainings that have no model yet: `results/trainings/`, a file for each place of a model."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.base.errors import InUseError
from harness.base.json_files import Versioned
from harness.base.storage import json_hash, make_folder_durably, open_regular, read_regular, sync_folder, write_durably
from harness.evidence.records import TRAINING, Results, new_run_id
from harness.host.facts import HostFacts
from harness.matrix.stacks import ExecutorName
from harness.registry.tags.known_good import KnownGood
from harness.training.fallbacks import Begin

TRAININGS_FOLDER = "trainings"


class TrainingState(Versioned):
    """The state from which a training resumes after a reboot. Its attempts are runs, and their records say the rest."""

    id: str
    key: str = Field(description="hash of what is to be trained; another key is another training")
    cell: str
    evidence: KnownGood | None
    executor: ExecutorName | None = Field(None, description="that of the answer's runs; null: as on any host")
    begins: tuple[Begin, ...] = Field((), description="why each attempt was begun, written before it is")
    began: float = Field(description="seconds since 1970")

    def run_id(self, number: int) -> str:
        """Return the id of an attempt, from 1."""
        return f"{self.id}-{number}"

    @property
    def run_ids(self) -> list[str]:
        """Return the ids of all attempts that were begun."""
        return [self.run_id(number) for number in range(1, len(self.begins) + 1)]


def new_state(key: str, cell: str, evidence: KnownGood | None, executor: ExecutorName | None = None) -> TrainingState:
    """Return the state of a training of which nothing was done yet."""
    return TrainingState(
        id=new_run_id(TRAINING), key=key, cell=cell, evidence=evidence, executor=executor, began=time.time()
    )


@dataclass(frozen=True)
class StateFile:
    """The file of one training, from its first attempt until there is a model."""

    file: Path

    def read(self, key: str) -> TrainingState | None:
        """Return the training that was begun here with the same key; None where there is none."""
        of_key = (self._parsed(file) for file in (self.file, self._aside(key)))
        return next((training for training in of_key if training and training.key == key), None)

    def unfinished_other(self, key: str) -> TrainingState | None:
        """Return the last training that was begun here with another key and has no model yet."""
        last = self._parsed(self.file)
        return last if last and last.key != key and last.begins else None

    def write(self, training: TrainingState) -> None:
        """Write how it stands, durably; one with another key is set aside, to be continued when it is asked for."""
        if other := self.unfinished_other(training.key):
            self.file.replace(self._aside(other.key))
            sync_folder(self.file.parent)
        write_durably(self.file, training.model_dump_json(indent=2, by_alias=True).encode())
        self._aside(training.key).unlink(missing_ok=True)

    def _aside(self, key: str) -> Path:
        return self.file.with_name(f"{self.file.stem}-{key[:16]}.json")

    @staticmethod
    def _parsed(file: Path) -> TrainingState | None:
        try:
            return TrainingState.parse(read_regular(file))
        except (FileNotFoundError, ValidationError):
            return None

    def remove(self) -> None:
        """Remove the file: the model is where it is to be."""
        self.file.unlink(missing_ok=True)
        sync_folder(self.file.parent)


@contextmanager
def open_state_file(results: Results, host: HostFacts, output: Path, name: str) -> Iterator[StateFile]:
    """Open the file of the training of a model of that name in a folder of this machine, for this process alone.

    Raises:
        UserError: when another process trains that model.
    """
    # However the folder is called: by a link, or from elsewhere.
    place = json_hash([host.machine, str(output.resolve()), name])[:16]
    file = results.folder / TRAININGS_FOLDER / f"{place}.json"
    make_folder_durably(file.parent)
    with open_regular(file.with_suffix(".lock"), adding=True) as lock:
        try:
            # Not passed on to the runs: what an orphan does is ended before the training continues.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(f"{output / name} is being trained by another process; wait for it") from None
        yield StateFile(file)
