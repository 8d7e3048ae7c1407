"""How good the models of a training are, one sentence each, from their verified results."""

import math
from pathlib import Path

from pydantic import ValidationError

from harness.base.files.json_bounds import json_object
from harness.base.files.storage import read_regular
from harness.base.wording import many
from harness.evidence.files.app_files import Result, Training, Verification, VerifiedTraining
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import LARGEST, model_names

WORSE = "WORSE: do not use this model"
LOWER = "lower, which alone is no evidence of skill"


def losses_in_words(result: Result, folder: RunFolder, output: Path, name: str) -> tuple[str, ...]:
    """Return the loss of each model that was published under `name`, compared with that of a constant answer.

    The latter is what this host computed; of a run that was not verified, what its app says.
    """
    trainings = result.trainings
    names = model_names([training.model_kind for training in trainings], name)
    found = [one.constant_rate_loss for one in _verified(folder)]
    if len(found) != len(trainings):
        found = [None] * len(trainings)
    return tuple(
        _in_words(training, _constant_rate_loss(output / f"{model}_metadata.json") if constant is None else constant)
        for training, model, constant in zip(trainings, names, found, strict=True)
    )


def _verified(folder: RunFolder) -> tuple[VerifiedTraining, ...]:
    try:
        return Verification.parse(read_regular(folder.named(folder.KEPT_VERIFICATION), LARGEST["verification"])).models
    except (OSError, ValidationError):
        return ()


def _in_words(training: Training, constant: float | None) -> str:
    kept, done, asked = training.kept_epoch, training.epochs_done, training.epochs_requested
    epochs = f"epoch {kept} of {done} is kept" if kept else many(done, "epoch")
    at_its_end = training.resumed_at[-1:] == (training.steps_done,)
    more = "; resumed at that end, it goes on only with a larger --patience, or with 0" if at_its_end else ""
    early = f" (stopped early, of {asked}: later ones were no better{more})" if training.stopped_early else ""
    losses = {epoch.epoch: epoch.validation for epoch in training.epoch_losses}
    loss = losses.get(kept or done)
    if loss is None:
        return f"{training.model_kind}: {epochs}{early}"
    told = f"{training.model_kind}: {epochs}{early}: validation loss {loss:.4f}"
    if constant is None:
        return told
    what = LOWER if loss < constant else WORSE
    return f"{told}; always answering the training samples' rate has {constant:.4f}: {what}"


def _constant_rate_loss(metadata: Path) -> float | None:
    """Return the loss of a constant answer from the app's metadata; None if it is not there."""
    try:
        loss = json_object(read_regular(metadata, LARGEST["metadata"]))["metrics"]["constant_rate_loss"]
    except (OSError, KeyError, TypeError):
        return None
    return loss if isinstance(loss, float) and math.isfinite(loss) else None
