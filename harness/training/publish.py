"""Copies the files of a training to where the user wants them."""

import shutil
from pathlib import Path, PurePath

from harness.base.errors import UserError
from harness.base.storage import sync_folder, unfinished, write_durably
from harness.base.untrusted_tree import NotAFileError, UntrustedTree, shown
from harness.evidence.run_files import Record
from harness.evidence.run_folder import RunFolder
from harness.evidence.work_folder import LARGEST, checkpoint_folders, hand_over, model_names, newest_checkpoints


def publish(folder: RunFolder, record: Record, output: Path, name: str, *, keep_checkpoints: bool) -> None:
    """Put the files of a completed attempt, and its last checkpoints, into the user's. Doing it twice is once.

    `name`: that of the training, from which those of its files follow, whatever the result calls them. The models are
    those that were verified; of what else the app wrote only metadata and curves are copied. Checkpoints of an earlier
    training stay with `keep_checkpoints`, and otherwise are kept under the name that the app gives them then.

    Raises:
        UserError: when they cannot be written, or are not there any more; what is there is whole.
    """
    made = folder.work.output
    trainings = record.result.trainings if record.result else ()
    kinds = [training.model_kind for training in trainings]
    names = model_names(kinds, name)
    for name_of_model in names:
        _copy(made, f"{name_of_model}_metadata.json", output, LARGEST["metadata"])
        for ending in ("csv", "png"):
            _copy(made, f"{name_of_model}_curves.{ending}", output, LARGEST["curves"])
    # The model last: whoever sees it finds the rest.
    for number, (training, name_of_model) in enumerate(zip(trainings, names, strict=True), 1):
        file, kept = f"{name_of_model}.pt", folder.kept_model(number)
        if kept.is_file():
            write_durably(output / file, kept.read_bytes())
        else:
            # A run of an earlier harness, which kept no copy.
            _copy(made, file, output, LARGEST["model"], training.model.sha256)
    steps = [training.steps_done for training in trainings]
    for checkpoint in newest_checkpoints([made], dict(zip(checkpoint_folders(kinds, name), steps, strict=True))):
        place = output / checkpoint.parent.name
        if not keep_checkpoints and not (place / checkpoint.name).exists():
            _set_aside(place)
        hand_over([checkpoint], output)
        sync_folder(place)


def _copy(made: PurePath, name: str, output: Path, most: int, sha256: str | None = None) -> None:
    """Copy a file of the app's output folder; one that is to have a hash has to be there."""
    half = unfinished(output / name)
    try:
        output.mkdir(parents=True, exist_ok=True)
        copied = UntrustedTree(made).copy_out(name, half, most)
        if sha256 not in (None, copied.sha256):
            raise NotAFileError("is not the one that was verified")
        half.replace(output / name)
    except (FileNotFoundError, NotAFileError) as error:
        if sha256 is not None:
            raise UserError(f"{made / shown(name)}: {error}; train again") from None
    except OSError as error:
        raise UserError(f"{output / name}: cannot be written: {error.strerror}; free space there") from None
    finally:
        half.unlink(missing_ok=True)


def _set_aside(checkpoints: Path) -> None:
    if checkpoints.is_dir():
        kept = checkpoints.with_name(f"{checkpoints.name}.previous")
        shutil.rmtree(kept, ignore_errors=True)
        checkpoints.rename(kept)
