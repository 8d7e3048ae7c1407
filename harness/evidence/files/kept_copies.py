"""Keeps copies of what an app left where the app cannot reach them: the harness works with these copies alone.

Functions that make a copy raise UserError when the run folder cannot be written to.
"""

from pathlib import Path, PurePath
from typing import TypeVar

from pydantic import ValidationError

from harness.base.files.json_files import File
from harness.base.files.storage import cannot_be_written, write_durably
from harness.base.files.untrusted_copy import copy_out
from harness.base.files.untrusted_file import NotAFileError
from harness.base.text import safe_text
from harness.base.validation_errors import first_problem
from harness.evidence.files.app_files import KeptState, Result, Verification
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST, WorkFolder

Kept = TypeVar("Kept", bound=File)


def keep_result(folder: RunFolder) -> tuple[Result | None, str]:
    """Keep a copy of the result; return the result, or None and why there is none."""
    return _kept(folder.work, WorkFolder.RESULT, LARGEST["result"], folder.named(RunFolder.KEPT_RESULT), Result)


def keep_verification(folder: RunFolder) -> tuple[Verification | None, str]:
    """Keep a copy of the verification; return the verification, or None and why there is none."""
    kept = folder.named(RunFolder.KEPT_VERIFICATION)
    return _kept(folder.verifying, WorkFolder.VERIFICATION, LARGEST["verification"], kept, Verification)


def keep_models(folder: RunFolder, result: Result) -> tuple[list[str | None], str]:
    """Keep a copy of every model that a result names; return their hashes, and why one cannot be read.

    A missing model has None for a hash.
    """
    hashes, problems = list[str | None](), list[str]()
    for number, training in enumerate(result.trainings, 1):
        name = f"{WorkFolder.OUTPUT}/{PurePath(training.model.file).name}"
        sha256, problem = copy_from_work(folder, name, LARGEST["model"], folder.kept_model(number))
        hashes.append(sha256)
        if problem:
            problems.append(f"the model file {safe_text(training.model.file)} {problem}")
    return hashes, next(iter(problems), "")


def keep_state(folder: RunFolder, state: KeptState, number: int) -> tuple[str | None, str]:
    """Keep a copy of a state of the model with this number; return its hash, and why it cannot be read."""
    name = f"{WorkFolder.STATES}/{PurePath(state.file).name}"
    sha256, problem = copy_from_work(folder, name, LARGEST["state"], folder.kept_state(number))
    return sha256, problem and f"the state {safe_text(state.file)} {problem}"


def copy_from_work(folder: RunFolder, name: str, most: int, place: Path) -> tuple[str | None, str]:
    """Copy a file of at most `most` bytes from the work folder; return its hash, and why it cannot be read."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return copy_out(folder.work.tree, name, place, most), ""
    except NotAFileError as error:
        return None, str(error)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        raise cannot_be_written(place, error) from None


def _kept(work: WorkFolder, name: str, most: int, kept: Path, kind: type[Kept]) -> tuple[Kept | None, str]:
    try:
        content = work.tree.read(name, most)
    except FileNotFoundError:
        return None, f"there is no {name}"
    except NotAFileError as error:
        return None, f"{name} {error}"
    write_durably(kept, content)
    try:
        return kind.parse(content), ""
    except ValidationError as error:
        return None, f"{name} cannot be read: {first_problem(error)}"
