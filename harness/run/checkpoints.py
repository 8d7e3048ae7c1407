"""The checkpoints that the app writes: which can be gone on from, and how another run gets them."""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from harness.base.errors import UserError
from harness.base.storage import file_hash, unfinished

FOLDERS = "*_checkpoints"
# As the app names them: the optimizer steps done, and the SHA-256 of the content.
NAME = re.compile(r"step-(\d{9})\.([0-9a-f]{64})\.pt")


def newest_checkpoints(outputs: Iterable[Path], pattern: str = FOLDERS) -> tuple[Path, ...]:
    """Of each model the checkpoint with the most steps that is intact, whichever output folder it is in.

    The models of a training are told apart by the names of the folders that hold their checkpoints.
    """
    found: dict[str, list[Path]] = {}
    for output in outputs:
        for file in output.glob(f"{pattern}/*.pt"):
            if NAME.fullmatch(file.name):
                found.setdefault(file.parent.name, []).append(file)
    newest = (_newest_intact(files) for _, files in sorted(found.items()))
    return tuple(file for file in newest if file)


def steps_done(checkpoints: Iterable[Path]) -> int:
    """The optimizer steps that these checkpoints hold, over all models."""
    return sum(int(match[1]) for file in checkpoints if (match := NAME.fullmatch(file.name)))


def hand_over(checkpoints: Iterable[Path], output: Path) -> None:
    """Have these checkpoints in another output folder, too. Links will do: nobody writes to them again.

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
    match = NAME.fullmatch(file.name)
    try:
        return match is not None and file_hash(file) == match[2]
    except OSError:
        return False
