"""Copies the files of a training to where the user wants them."""

import shutil
from pathlib import Path

from harness.base.storage import sync_folder, write_durably
from harness.evidence.work_folder import hand_over, newest_checkpoints


def publish(made: Path, output: Path, *, keep_checkpoints: bool) -> None:
    """Put the files of an attempt's output folder, and its last checkpoints, into the user's. Doing it twice is once.

    Checkpoints of an earlier training stay with `keep_checkpoints`, and otherwise are kept under the name that the app
    gives them then.

    Raises:
        UserError: when they cannot be written; what is there is whole.
    """
    # The model last: whoever sees it finds the rest.
    files = sorted((file for file in made.iterdir() if file.is_file()), key=lambda file: file.suffix == ".pt")
    for file in files:
        write_durably(output / file.name, file.read_bytes())
    for checkpoint in newest_checkpoints([made]):
        folder = output / checkpoint.parent.name
        if not keep_checkpoints and not (folder / checkpoint.name).exists():
            _set_aside(folder)
        hand_over([checkpoint], output)
        sync_folder(folder)


def _set_aside(checkpoints: Path) -> None:
    if checkpoints.is_dir():
        kept = checkpoints.with_name(f"{checkpoints.name}.previous")
        shutil.rmtree(kept, ignore_errors=True)
        checkpoints.rename(kept)
