"""The part of a run folder that the app writes: its file names, and what is read from them."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from harness.base.errors import UserError
from harness.base.storage import file_hash, unfinished
from harness.evidence.app_files import Reference, Result, Training

# As the app names checkpoints: the optimizer steps done, and the SHA-256 of the content.
CHECKPOINT = re.compile(r"step-(\d{9})\.([0-9a-f]{64})\.pt")

VALUES = {"rank": r"\d{1,6}", "gpu": r"\d+", "number": r"(?:-\d+)?", "log": r"[\w-]+?"}
"""The values that a placeholder in a name may have, as patterns."""


@dataclass(frozen=True)
class WorkFolder:
    """The files that the app writes. `path` is their folder on this host, or as the app in its container calls it."""

    path: Path

    RESULT: ClassVar = "result.json"
    REFERENCE: ClassVar = "reference.json"
    FEATURES: ClassVar = "features.parquet"
    OUTPUT: ClassVar = "output"
    CHECKPOINTS: ClassVar = "*_checkpoints"
    SCRATCH: ClassVar = "scratch"
    TEMPORARY: ClassVar = "tmp"
    # By the environment variable that says where each is.
    CACHES: ClassVar = {
        "MIOPEN_USER_DB_PATH": "miopen-db",
        "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "MPLCONFIGDIR": "matplotlib",
    }
    # One file per rank.
    PROGRESS: ClassVar = "progress-{rank}.jsonl"
    POSITION: ClassVar = "position-{rank}.bin"
    STACKS: ClassVar = "stacks-{rank}.txt"

    @property
    def result(self) -> Path:
        """The app's account of what it did; written last."""
        return self.path / self.RESULT

    @property
    def reference(self) -> Path:
        """The first steps on the CPU in float32."""
        return self.path / self.REFERENCE

    @property
    def features(self) -> Path:
        """The features that one process hands to the next."""
        return self.path / self.FEATURES

    @property
    def output(self) -> Path:
        """The folder of models, their metadata and checkpoints."""
        return self.path / self.OUTPUT

    @property
    def scratch(self) -> Path:
        """HOME of the processes, with every cache."""
        return self.path / self.SCRATCH

    @property
    def temporary(self) -> Path:
        """TMPDIR in a container."""
        return self.scratch / self.TEMPORARY

    @property
    def cache(self) -> Path:
        """The folder of the caches, each under its name in CACHES."""
        return self.scratch / "cache"

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders that have to be there before the app starts."""
        return (self.temporary, *(self.cache / name for name in self.CACHES.values()))

    def model(self, file: str) -> Path:
        """Return the place of a model file. Only its name counts: a result cannot point out of its own run folder."""
        return self.output / Path(file).name

    def progress(self) -> dict[int, Path]:
        """Return the progress files there are, by rank."""
        return self._by_rank(self.PROGRESS)

    def positions(self) -> dict[int, Path]:
        """Return the files of positions in a step there are, by rank."""
        return self._by_rank(self.POSITION)

    def stacks(self) -> dict[int, Path]:
        """Return the files of Python stacks there are, by rank."""
        return self._by_rank(self.STACKS)

    def position(self, rank: int) -> Path:
        """Return where a rank tells its position in a step."""
        return self.path / self.POSITION.format(rank=rank)

    def read_result(self) -> tuple[Result | None, str]:
        """Return the result, or None and why there is none."""
        try:
            return Result.parse(self.result.read_bytes()), ""
        except FileNotFoundError:
            return None, f"there is no {self.RESULT}"
        except (OSError, ValidationError) as error:
            return None, f"{self.RESULT} cannot be read: {_first_problem(error)}"

    def model_hash(self, training: Training) -> str | None:
        """Return the SHA-256 of a model file as it is on the disk; None where it is not there."""
        try:
            return file_hash(self.model(training.model.file))
        except OSError:
            return None

    def _by_rank(self, pattern: str) -> dict[int, Path]:
        before, _, after = pattern.partition("{rank}")
        found = {name[len(before) : len(name) - len(after)]: name for name in _names(self.path, before, after)}
        ranks = {int(rank): self.path / name for rank, name in found.items() if re.fullmatch(VALUES["rank"], rank)}
        return dict(sorted(ranks.items()))


def regex_of(name: str) -> str:
    """Return what matches a name with any values for its placeholders."""
    return re.sub(r"\\{(\w+)\\}", lambda found: VALUES[found[1]], re.escape(name))


def read_reference(file: Path) -> Reference | None:
    """Return a CPU reference, or None where there is no sound one."""
    try:
        return Reference.parse(file.read_bytes())
    except (OSError, ValidationError):
        return None


def newest_checkpoints(outputs: Iterable[Path], pattern: str = WorkFolder.CHECKPOINTS) -> tuple[Path, ...]:
    """Return of each model the intact checkpoint with the most steps, whichever output folder it is in.

    The models of a training are told apart by the names of the folders that hold their checkpoints.
    """
    found: dict[str, list[Path]] = {}
    for output in outputs:
        for file in output.glob(f"{pattern}/*.pt"):
            if CHECKPOINT.fullmatch(file.name):
                found.setdefault(file.parent.name, []).append(file)
    newest = (_newest_intact(files) for _, files in sorted(found.items()))
    return tuple(file for file in newest if file)


def steps_done(checkpoints: Iterable[Path]) -> int:
    """Return the optimizer steps that these checkpoints hold, over all models."""
    return sum(int(match[1]) for file in checkpoints if (match := CHECKPOINT.fullmatch(file.name)))


def hand_over(checkpoints: Iterable[Path], output: Path) -> None:
    """Place these checkpoints in another output folder, too. Links will do: nobody writes to them again.

    Raises:
        UserError: when they cannot be placed there.
    """
    for file in checkpoints:
        place = output / file.parent.name / file.name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if _is_intact(place):
                continue
            place.unlink(missing_ok=True)
            try:
                place.hardlink_to(file)
            except OSError:
                # Another filesystem, or one without links. It gets its name when it is there as a whole.
                half = unfinished(place)
                shutil.copyfile(file, half)
                with half.open("rb") as stream:
                    os.fsync(stream.fileno())
                half.replace(place)
        except OSError as error:
            raise UserError(f"{place}: cannot be written: {error.strerror}; free space there") from None


def _newest_intact(files: list[Path]) -> Path | None:
    return next((file for file in sorted(files, key=lambda file: file.name, reverse=True) if _is_intact(file)), None)


def _is_intact(file: Path) -> bool:
    match = CHECKPOINT.fullmatch(file.name)
    try:
        return match is not None and file_hash(file) == match[2]
    except OSError:
        return False


def _first_problem(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error)
    details = error.errors()[0]
    return f"{'.'.join(map(str, details['loc']))}: {details['msg']}"


def _names(folder: Path, before: str, after: str) -> Iterator[str]:
    # Asked ten times a second: not by Path.glob, which takes several times as long.
    try:
        with os.scandir(folder) as entries:
            yield from (e.name for e in entries if e.name.startswith(before) and e.name.endswith(after))
    except OSError:
        return
