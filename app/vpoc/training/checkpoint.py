"""Checkpoints: everything that the rest of a training depends on, in files named by their own SHA-256.

A checkpoint is taken between two optimizer steps. The order and the batches of the samples follow from seed and
position, and the loop draws no random numbers, so weights, Adam's state, the loss scale and the position are
sufficient.
"""

import io
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vpoc.errors import UserError, from_os_error
from vpoc.files import read_regular, refuse_link_of_another, remove, sha256, write_atomic
from vpoc.training.loop import Trainer
from vpoc.training.model_file.artefact import load_plain

CHECKPOINT_SCHEMA = 3
CHECKPOINTS_KEPT = 3
"""Number of checkpoints kept: the last one can be damaged, and the one before it, too, when the disk was full."""
CHECKPOINT_NAME = re.compile(r"step-(\d{9})\.([0-9a-f]{64})\.pt")


@dataclass(frozen=True)
class Position:
    """The position of a training: `batch` batches of `epoch` (from 1) are done.

    Batch 0 of epoch n: n - 1 epochs are done.
    """

    epoch: int = 1
    batch: int = 0


@dataclass
class History:
    """The history of a training's steps, as plain values."""

    first_steps: list[dict[str, Any]] = field(default_factory=list)
    epoch_losses: list[dict[str, Any]] = field(default_factory=list)
    loss: float = 0.0
    weight: float = 0.0
    accuracy: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    resumed_at: list[int] = field(default_factory=list)
    injected_fault: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from a file.

    `identity`: settings that must be the same to resume.
    `manner`: settings that may differ, but change the last digits of results.
    """

    path: Path
    identity: dict[str, Any]
    manner: dict[str, Any]
    position: Position
    history: History
    state: dict[str, Any]


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Return the weights, Adam's state of each parameter by name, and the trainer's counters, on the CPU.

    All ranks must call it.
    """
    return {
        "weights": trainer.strategy.weights(),
        "adam": trainer.moments(),
        "scaler": trainer.scaler.state_dict(),
        "steps_done": trainer.steps_done,
        "steps_skipped": trainer.steps_skipped,
        "skipped_in_a_row": trainer.skipped_in_a_row,
    }


def restore(trainer: Trainer, state: dict[str, Any]) -> None:
    """Load what `state_of` returned, whatever strategy and devices the state was taken with."""
    for name in ("steps_done", "steps_skipped", "skipped_in_a_row"):
        setattr(trainer, name, state[name])
    trainer.strategy.load_weights(state["weights"])
    trainer.load_moments(state["adam"])
    if trainer.scaler.is_enabled() and state["scaler"]:
        trainer.scaler.load_state_dict(state["scaler"])


def write_checkpoint(
    folder: Path,
    state: dict[str, Any],
    position: Position,
    history: History,
    identity: dict[str, Any],
    manner: dict[str, Any],
) -> Path:
    """Write a checkpoint in `folder` atomically, and remove all but the last three; return its path."""
    document = {"schema": CHECKPOINT_SCHEMA, "identity": identity, "manner": manner, "position": asdict(position)}
    document |= {"history": asdict(history), "state": state}
    buffer = io.BytesIO()
    torch.save(document, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{state['steps_done']:09}.{sha256(content)}.pt"
    refuse_link_of_another(folder)
    write_atomic(path, content)
    for unfinished in folder.glob(".step-*.tmp"):
        # One that is another user's, or a folder, is no reason to end a training.
        with suppress(UserError):
            remove(unfinished)
    # After the last step of an epoch there are two checkpoints; the one from before the validation is the older.
    step = path.name.split(".")[0]
    before = [old for old in _found(folder) if old.name.split(".")[0] != step]
    for old in _found(folder):
        if old != path and old not in before[: CHECKPOINTS_KEPT - 1]:
            remove(old)
    return path


def last_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the last intact checkpoint in `folder`, None when there is none; damaged ones are reported to `warn`."""
    for path in _found(folder):
        content = read_regular(path)
        match = CHECKPOINT_NAME.fullmatch(path.name)
        if match is None or sha256(content) != match[2]:
            warn(f"{path}: damaged, its SHA-256 is not the one in its name; the checkpoint before it is used")
            continue
        try:
            return _loaded(path, content)
        except UserError:
            raise
        except Exception:  # an invented one can fail anywhere in the unpickler
            warn(f"{path}: holds no checkpoint, though it is named like one; the checkpoint before it is used")
    return None


def _loaded(path: Path, content: bytes) -> Checkpoint:
    """Return the checkpoint in `content`; UserError for one of another version, any error where it is none."""
    document = load_plain(content)
    if document["schema"] != CHECKPOINT_SCHEMA:
        raise UserError(f"{path}: a checkpoint of another version of vpoc; train without --resume")
    position = Position(**document["position"])
    if not all(isinstance(count, int) for count in (position.epoch, position.batch)) or position.epoch < 1:
        raise ValueError(position)
    # Only plain values can be compared.
    json.dumps([document["identity"], document["manner"]])
    history = History(**dict(document["history"]))
    return Checkpoint(path, dict(document["identity"]), dict(document["manner"]), position, history, document["state"])


def require_same_training(checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
    """Raise UserError when the checkpoint belongs to another training than the one that `identity` describes."""
    for name, value in identity.items():
        before = checkpoint.identity.get(name)
        if before != value:
            raise UserError(
                f"{checkpoint.path}: was trained with {name.replace('_', '-')} {before}, this run has {value}; "
                "give the same, or train without --resume"
            )


def set_aside(folder: Path) -> Path | None:
    """Rename the checkpoints of an earlier training, replacing those kept before.

    Return the new name, None without any.
    """
    if not _found(folder):
        return None
    kept = folder.with_name(f"{folder.name}.previous")
    try:
        for old in _found(kept):
            old.unlink()
        kept.mkdir(exist_ok=True)
        for path in _found(folder):
            path.rename(kept / path.name)
    except OSError as error:
        raise from_os_error(error, folder) from error
    return kept


def _found(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, the last first.

    UserError when it cannot be read, or is a link of another user.
    """
    refuse_link_of_another(folder)
    if not folder.is_dir():
        return []
    try:
        return sorted((path for path in folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), reverse=True)
    except OSError as error:
        raise from_os_error(error, folder) from error
