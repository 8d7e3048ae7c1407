"""Trainings that have no model yet: `results/trainings/`, a file for each place that a model is to go to."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.base.errors import UserError
from harness.base.json_files import Versioned
from harness.base.storage import json_hash, make_folder_durably, sync_folder, write_durably
from harness.evidence.records import TRAINING, Results, new_run_id
from harness.host.facts import HostFacts
from harness.registry.tags.known_good import KnownGood
from harness.training.supervise import Begin

FOLDER = "trainings"


class Training(Versioned):
    """What is needed to go on with a training after a reboot. Its attempts are runs, and their records say the rest."""

    id: str
    key: str = Field(description="what was asked for; another question is another training")
    cell: str
    evidence: KnownGood | None
    begins: tuple[Begin, ...] = Field((), description="why each attempt was begun, written before it is")
    began: float = Field(description="seconds since 1970")

    def run_id(self, number: int) -> str:
        """The id of an attempt, from 1."""
        return f"{self.id}-{number}"

    @property
    def run_ids(self) -> list[str]:
        """Those of all attempts that were begun."""
        return [self.run_id(number) for number in range(1, len(self.begins) + 1)]


def new_training(key: str, cell: str, evidence: KnownGood | None) -> Training:
    """One of which nothing was done yet."""
    return Training(id=new_run_id(TRAINING), key=key, cell=cell, evidence=evidence, began=time.time())


@dataclass(frozen=True)
class Notebook:
    """Where one training is noted, from its first attempt until there is a model."""

    file: Path

    def read(self, key: str) -> Training | None:
        """The training that was begun here with the same question; None where there is none."""
        try:
            training = Training.model_validate_json(self.file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return training if training.key == key else None

    def write(self, training: Training) -> None:
        """Note how it stands, durably."""
        write_durably(self.file, training.model_dump_json(indent=2, by_alias=True).encode())

    def close(self) -> None:
        """The model is where it is to be."""
        self.file.unlink(missing_ok=True)
        sync_folder(self.file.parent)


@contextmanager
def open_notebook(results: Results, host: HostFacts, output: Path, name: str) -> Iterator[Notebook]:
    """The notebook of the training of a model of that name in a folder of this machine; nobody else may train it then.

    Raises:
        UserError: when another process does.
    """
    # However the folder is called: by a link, or from elsewhere.
    place = json_hash([host.machine, str(output.resolve()), name])[:16]
    file = results.folder / FOLDER / f"{place}.json"
    make_folder_durably(file.parent)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            # Not passed on to the runs: what an orphan does is ended before the training goes on.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{output / name}.pt is being trained by another process; wait for it") from None
        yield Notebook(file)
