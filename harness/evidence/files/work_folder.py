"""The part of a run folder that the app writes: its file names, and how they are read.

The app is not trusted. A path is not a `Path` here, so that only an `UntrustedTree` can open what they name.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import ClassVar, Protocol, TypeVar

from harness.base.errors import NoSpaceError, UserError
from harness.base.files.storage import cannot_be_written, make_folder_durably, unfinished
from harness.base.files.untrusted_copy import MOST_HOLE_BYTES, copy_out
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.host.disk_use import DiskLimit

# The app's names of checkpoints: the number of optimizer steps done, and the SHA-256 of the content.
CHECKPOINT = re.compile(r"step-(\d{9})\.([0-9a-f]{64})\.pt")

VALUES = {"rank": r"\d{1,6}", "gpu": r"\d+", "number": r"(?:-\d+)?", "log": r"[\w-]+?"}
"""The values that a placeholder in a file name may have, as patterns."""

MOST_RANKS = 256
# The app keeps three checkpoints of a model, and a fourth while it replaces one.
MOST_TRIED = 4
# Longest search for the checkpoints of a training, in seconds: they may have some gigabytes.
LONGEST_SEARCH_SECONDS = 300.0

LARGEST: Mapping[str, int] = {
    "result": 4 << 20,
    "verification": 16 << 20,
    # Those of a week, at one line a second.
    "progress": 256 << 20,
    "progress line": 4 << 10,
    "position": 4 << 10,
    "stacks": 64 << 20,
    "model": 2 << 30,
    "state": 2 << 30,
    "metadata": 4 << 20,
    "curves": 64 << 20,
    "checkpoint": 8 << 30,
}
"""Largest file of each kind that is read, in bytes."""


AnyPath_co = TypeVar("AnyPath_co", bound=PurePath, covariant=True)


class _Folder(Protocol[AnyPath_co]):
    @property
    def path(self) -> AnyPath_co: ...


class FilePlace:
    """A descriptor that returns the place of the file `name` in the folder that it is an attribute of."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: _Folder[AnyPath_co], _: object) -> AnyPath_co:
        return folder.path / self._name


@dataclass(frozen=True)
class WorkFolder:
    """The files that the app writes. `path`: their folder, on this host or under the path that a container sees."""

    path: PurePath

    # The app's account of what it did; written last.
    RESULT: ClassVar = "result.json"
    VERIFICATION: ClassVar = "verification.json"
    # Only in runs of earlier harnesses.
    REFERENCE: ClassVar = "reference.json"
    FEATURES: ClassVar = "features.parquet"
    OUTPUT: ClassVar = "output"
    CHECKPOINTS: ClassVar = "*_checkpoints"
    STATES: ClassVar = "states"
    SCRATCH: ClassVar = "scratch"
    TEMPORARY: ClassVar = "tmp"
    # For a program of the user's own: its working folder, its data, and the file in which it reports progress.
    PROGRAM: ClassVar = "program"
    DATA: ClassVar = "data"
    PROGRAM_PROGRESS: ClassVar = "progress.jsonl"
    # Names of the caches, by the environment variable that points to each.
    CACHES: ClassVar = {
        "MIOPEN_USER_DB_PATH": "miopen-db",
        "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "MPLCONFIGDIR": "matplotlib",
    }
    # There is one of these files for each rank.
    PROGRESS: ClassVar = "progress-{rank}.jsonl"
    POSITION: ClassVar = "position-{rank}.bin"
    STACKS: ClassVar = "stacks-{rank}.txt"

    # The training computed again in parts; only in the folder of the verification.
    verification = FilePlace(VERIFICATION)
    # The features that one process hands to the next one.
    features = FilePlace(FEATURES)
    # The folder of models, their metadata and checkpoints.
    output = FilePlace(OUTPUT)
    # HOME of the processes, with every cache.
    scratch = FilePlace(SCRATCH)
    # The folder in which a program of the user's own works.
    program = FilePlace(PROGRAM)
    # The folder with links to its data, where the program is not in a container.
    data = FilePlace(DATA)
    # The file in which the program may report progress, one JSON object a line.
    program_progress = FilePlace(PROGRAM_PROGRESS)

    def __post_init__(self) -> None:
        # Converted also if the caller has a `Path`, so that the path cannot be used to open files by mistake.
        object.__setattr__(self, "path", PurePosixPath(self.path))

    @property
    def tree(self) -> UntrustedTree:
        """The tree through which the files are opened."""
        return UntrustedTree(self.path)

    @property
    def temporary(self) -> PurePath:
        """TMPDIR in a container."""
        return self.scratch / self.TEMPORARY

    @property
    def cache(self) -> PurePath:
        """The folder of the caches, which have the names in CACHES."""
        return self.scratch / "cache"

    @property
    def places(self) -> tuple[PurePath, ...]:
        """The folders that must exist before the app starts."""
        return (self.temporary, *(self.cache / name for name in self.CACHES.values()))

    def progress(self) -> dict[int, str]:
        """Return the names of the progress files that exist, by rank."""
        return self._by_rank(self.PROGRESS)

    def positions(self) -> dict[int, str]:
        """Return the names of the files of positions in a step that exist, by rank."""
        return self._by_rank(self.POSITION)

    def stacks(self) -> dict[int, str]:
        """Return the names of the files of Python stacks that exist, by rank."""
        return self._by_rank(self.STACKS)

    def has_result(self) -> bool:
        """Return whether there is a result file, whatever its content."""
        try:
            return self.tree.look(self.RESULT).is_file
        except (FileNotFoundError, NotAFileError):
            return False

    def _by_rank(self, pattern: str) -> dict[int, str]:
        before, _, after = pattern.partition("{rank}")
        try:
            names = self.tree.names()
        except (FileNotFoundError, NotAFileError):
            return {}
        ours = (name for name in names if name.startswith(before) and name.endswith(after))
        found = {name[len(before) : len(name) - len(after)]: name for name in ours}
        ranks = {int(rank): name for rank, name in found.items() if re.fullmatch(VALUES["rank"], rank)}
        return dict(sorted(ranks.items())[:MOST_RANKS])


def regex_of(name: str) -> str:
    """Return a pattern that matches a name with any values for its placeholders."""
    return re.sub(r"\\{(\w+)\\}", lambda found: VALUES[found[1]], re.escape(name))


def checkpoint_folders(models: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the name of the folder of checkpoints of each model of a training called `name`, in order."""
    return tuple(WorkFolder.CHECKPOINTS.replace("*", file_name) for file_name in model_names(models, name))


def model_names(models: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the name, without suffix, of the file of each model of a training called `name`, in order."""
    return (*(f"{name}_{model}" for model in models[:-1]), name)


def newest_checkpoints(outputs: Iterable[PurePath], upto: Mapping[str, int | None]) -> tuple[PurePath, ...]:
    """Return the intact checkpoint with the most steps for each model, from any of the output folders.

    `upto`: for each folder of checkpoints, by name, the most steps that a checkpoint may have; None for any number.
    """
    until = time.monotonic() + LONGEST_SEARCH_SECONDS
    found = (_newest_intact(output, folder, most, until) for output in outputs for folder, most in upto.items())
    return furthest(file for file in found if file)


def furthest(checkpoints: Iterable[PurePath]) -> tuple[PurePath, ...]:
    """Return the checkpoint with the most steps for each model."""
    found: dict[str, PurePath] = {}
    for file in checkpoints:
        found[file.parent.name] = max(found.get(file.parent.name, file), file, key=lambda one: one.name)
    return tuple(file for _, file in sorted(found.items()))


def steps_done(checkpoints: Iterable[PurePath]) -> int:
    """Return the number of optimizer steps in these checkpoints, summed over all models."""
    return sum(int(match[1]) for file in checkpoints if (match := CHECKPOINT.fullmatch(file.name)))


def resumed_steps(models: Sequence[str], name: str, checkpoints: Iterable[PurePath]) -> tuple[int, ...]:
    """Return the optimizer steps in the checkpoint of each model of a training called `name`; 0 where there is none."""
    found = {file.parent.name: steps_done([file]) for file in checkpoints}
    return tuple(found.get(folder, 0) for folder in checkpoint_folders(models, name))


def hand_over(checkpoints: Iterable[PurePath], output: PurePath) -> None:
    """Copy checkpoints into another output folder, where nothing runs yet, and verify them by their names.

    Raises:
        UserError: when they cannot be written there, or do not have the hash in their name.
    """
    for file in checkpoints:
        if _is_intact(output / file.parent.name / file.name):
            continue
        _require_room(file, output)
        place = Path(output, file.parent.name, file.name)
        half = None
        try:
            make_folder_durably(place.parent)
            half = unfinished(place)
            tree, name = UntrustedTree(file.parent.parent), f"{file.parent.name}/{file.name}"
            if copy_out(tree, name, half, LARGEST["checkpoint"]) not in file.name:
                raise NotAFileError("does not have the hash in its name")
            # It gets its name only once it is complete.
            half.replace(place)
        except FileNotFoundError:
            raise UserError(f"{file}: is gone; the same command resumes from the one before it") from None
        except NotAFileError as error:
            raise UserError(f"{file}: {error}; remove it: the same command resumes from the one before") from None
        except OSError as error:
            raise cannot_be_written(place, error) from None
        finally:
            if half:
                half.unlink(missing_ok=True)


def _require_room(file: PurePath, output: PurePath) -> None:
    """Refuse a checkpoint whose copy would take more disk space than a run may: it may consist of holes.

    Raises:
        NoSpaceError: when it is too large.
    """
    most = DiskLimit.of(Path(output)).bytes
    # A missing checkpoint is reported when it is copied.
    with suppress(FileNotFoundError, NotAFileError):
        size = UntrustedTree(file.parent).look(file.name).size
        if size > most:
            raise NoSpaceError(
                f"{output}: no room for a checkpoint of {size / 1e6:.1f} MB, {most / 1e6:.1f} MB may be taken; "
                f"free space there, then give the same command ({file})"
            )


def _newest_intact(output: PurePath, folder: str, most: int | None, until: float) -> PurePath | None:
    """Return the newest of the last few checkpoints that is intact. Each is hashed, and the app may have made many."""
    steps = {name: int(match[1]) for name in _entries(output, folder) if (match := CHECKPOINT.fullmatch(name))}
    names = sorted((name for name, step in steps.items() if most is None or step <= most), reverse=True)
    files = (output / folder / name for name in names[:MOST_TRIED])
    return next((file for file in files if time.monotonic() < until and _is_intact(file)), None)


def _is_intact(file: PurePath) -> bool:
    match = CHECKPOINT.fullmatch(file.name)
    tree, name = UntrustedTree(file.parent.parent), f"{file.parent.name}/{file.name}"
    try:
        with tree.open(name, LARGEST["checkpoint"]) as opened:
            if match is None or opened.holes > MOST_HOLE_BYTES:
                return False
        return tree.hash(name, LARGEST["checkpoint"]) == match[2]
    except (FileNotFoundError, NotAFileError):
        return False


def _entries(output: PurePath, folder: str) -> list[str]:
    try:
        return UntrustedTree(output).names(folder)
    except (FileNotFoundError, NotAFileError):
        return []
