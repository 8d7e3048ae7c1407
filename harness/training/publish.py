"""Copies the files of a training into the user's output folder."""

import shutil
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path, PurePath

from harness.base.errors import UserError
from harness.base.files.hashes import file_hash
from harness.base.files.storage import cannot_be_written, copy_durably, sync_folder, unfinished
from harness.base.files.untrusted_copy import copy_out
from harness.base.files.untrusted_file import NotAFileError
from harness.base.files.untrusted_tree import UntrustedTree
from harness.base.text import safe_text
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import (
    CHECKPOINT,
    LARGEST,
    checkpoint_folders,
    hand_over,
    model_names,
    newest_checkpoints,
)

# Endings of the files that belong to a model, after its name.
METADATA, CURVES, PREDICTIONS = "_metadata.json", ("_curves.csv", "_curves.png"), "_predictions.csv"


def publish(folder: RunFolder, record: Record, output: Path, name: str, *, keep_checkpoints: bool) -> tuple[Path, ...]:
    """Copy the files of a completed attempt, and its last checkpoints, into the user's folder.

    Doing it twice is harmless.

    The models are those that were verified; of the app's other files only metadata and curves are copied. Another model
    of the same name is kept with its files.

    `name`: the name of the training, which decides the names of its files, whatever the result calls them.
    `keep_checkpoints`: whether checkpoints of an earlier training stay in place; otherwise they are renamed.

    Returns the places of models that were replaced.

    Raises:
        UserError: when files cannot be written, or are missing; the files that are there are complete.
    """
    made = folder.work.output
    trainings = record.result.trainings if record.result else ()
    kinds = [training.model_kind for training in trainings]
    names = model_names(kinds, name)
    models = [output / f"{name_of_model}.pt" for name_of_model in names]
    replaced = [_keep(model, training.model.sha256) for model, training in zip(models, trainings, strict=True)]
    for name_of_model in names:
        _copy(made, f"{name_of_model}{METADATA}", output, LARGEST["metadata"])
        for ending in CURVES:
            _copy(made, f"{name_of_model}{ending}", output, LARGEST["curves"])
    # Copy the model last: whoever sees it finds the other files complete.
    for number, (training, name_of_model) in enumerate(zip(trainings, names, strict=True), 1):
        file, kept = f"{name_of_model}.pt", folder.kept_model(number)
        if kept.is_file():
            copy_durably(kept, output / file)
        else:
            # A run of an earlier harness, which kept no copy of the model.
            _copy(made, file, output, LARGEST["model"], training.model.sha256)
    steps = [training.steps_done for training in trainings]
    for checkpoint in newest_checkpoints([made], dict(zip(checkpoint_folders(kinds, name), steps, strict=True))):
        place = output / checkpoint.parent.name
        if not keep_checkpoints and not (place / checkpoint.name).exists():
            _set_aside(place)
        hand_over([checkpoint], output)
        sync_folder(place)
    return tuple(filter(None, replaced))


def place_to_keep(model: Path) -> Path:
    """Return where a replaced file is kept: NAME.previous.pt, or NAME.previous-2.pt beside an earlier one.

    If an earlier call has already kept this very file, it is that place.
    """
    sha256 = file_hash(model)
    places = (model.with_name(f"{model.stem}.previous{number}{model.suffix}") for number in _numbers())
    # Whoever made the folder may have put a pipe or a device there, which has no end.
    return next(place for place in places if not place.exists() or (place.is_file() and file_hash(place) == sha256))


def _numbers() -> Iterator[str]:
    return chain([""], (f"-{number}" for number in count(2)))


def _keep(model: Path, sha256: str) -> Path | None:
    """Keep the model that a model with this hash is about to replace; return where, None if nothing is replaced."""
    try:
        if not model.is_file() or file_hash(model) == sha256:
            return None
        kept = place_to_keep(model)
        # If an earlier call has kept it already, the metadata beside the model may be the new model's by now.
        if not kept.exists():
            for ending in (METADATA, *CURVES, PREDICTIONS):
                of_kept = kept.with_name(f"{kept.stem}{ending}")
                # A leftover of a model that was kept there before.
                of_kept.unlink(missing_ok=True)
                if ending != PREDICTIONS and (of_model := model.with_name(f"{model.stem}{ending}")).is_file():
                    copy_durably(of_model, of_kept)
            copy_durably(model, kept)
        # Beside the new model the old predictions would be mistaken for its own.
        if (predictions := model.with_name(f"{model.stem}{PREDICTIONS}")).is_file():
            predictions.replace(kept.with_name(f"{kept.stem}{PREDICTIONS}"))
    except OSError as error:
        raise UserError(f"{model}: cannot be kept: {error.strerror}; move it, then give the same command") from None
    return kept


def _copy(made: PurePath, name: str, output: Path, most: int, sha256: str | None = None) -> None:
    """Copy a file of the app's output folder; it must be there if `sha256` is given."""
    half = unfinished(output / name)
    try:
        output.mkdir(parents=True, exist_ok=True)
        copied = copy_out(UntrustedTree(made), name, half, most)
        if sha256 not in (None, copied):
            raise NotAFileError("is not the one that was verified")
        half.replace(output / name)
    except (FileNotFoundError, NotAFileError) as error:
        if sha256 is not None:
            raise UserError(f"{made / safe_text(name)}: {error}; train again") from None
    except OSError as error:
        # The verified files are still in the results, so the user need not train again.
        told = cannot_be_written(output / name, error)
        raise type(told)(f"{told}, then give the same command") from None
    finally:
        half.unlink(missing_ok=True)


def _set_aside(checkpoints: Path) -> None:
    """Keep the checkpoints of an earlier training; a folder without checkpoints is one that an earlier call left."""
    kept = checkpoints.with_name(f"{checkpoints.name}.previous")
    try:
        if any(CHECKPOINT.fullmatch(place.name) for place in checkpoints.glob("*")):
            shutil.rmtree(kept, ignore_errors=True)
            checkpoints.rename(kept)
    except OSError as error:
        raise UserError(f"{checkpoints}: cannot be kept as {kept.name}: {error.strerror}; move it away") from None
