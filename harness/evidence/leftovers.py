"""What a run left behind, read from its folder."""

import os
from pathlib import Path

from pydantic import ValidationError

from harness.base.storage import file_hash
from harness.evidence.app_files import ModelCheck, Reference, Result, Training

RESULT = "result.json"
OUTPUT = "output"
LAST_BYTES = 1 << 16


def read_result(folder: Path) -> tuple[Result | None, str]:
    """The result of a run, or None and why there is none."""
    try:
        return Result.parse((folder / RESULT).read_bytes()), ""
    except FileNotFoundError:
        return None, f"there is no {RESULT}"
    except (OSError, ValidationError) as error:
        return None, f"{RESULT} cannot be read: {_first_problem(error)}"


def read_reference(file: Path) -> Reference | None:
    """A CPU reference, or None where there is no sound one."""
    try:
        return Reference.parse(file.read_bytes())
    except (OSError, ValidationError):
        return None


def read_model_check(file: Path) -> ModelCheck | None:
    """What `vpoc check-model --json` printed, or None where it is not that. Warnings around it are passed over."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        return ModelCheck.parse(text[text.find("{") : text.rfind("}") + 1])
    except (OSError, ValidationError):
        return None


def model_hash(folder: Path, training: Training) -> str | None:
    """The hash of a model file as it is on the disk; None where it is not there."""
    try:
        return file_hash(model_file(folder, training))
    except OSError:
        return None


def model_file(folder: Path, training: Training) -> Path:
    """A model of a run. Only the name counts: a result cannot point out of its own run folder."""
    return folder / OUTPUT / Path(training.model.file).name


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, from its last LAST_BYTES; or words for why there is none."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(size - LAST_BYTES, 0))
            lines = stream.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return "there is no log"
    nothing = "the log is empty" if size <= LAST_BYTES else "the log ends in blank lines"
    return next((line.strip() for line in reversed(lines) if line.strip()), nothing)


def _first_problem(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error)
    details = error.errors()[0]
    return f"{'.'.join(map(str, details['loc']))}: {details['msg']}"
