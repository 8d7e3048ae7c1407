"""Whether a checkpoint that anybody may have made holds what a training would have written itself."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from vpoc.training.checkpoint import Checkpoint, History
from vpoc.training.loop import ADAM_MOMENTS

Tensors = Mapping[str, torch.Tensor]


def require_resumable(found: Checkpoint, like: Tensors, steps: int, *, validates: bool, chooses: bool) -> None:
    """Raise an error, of any kind, unless a training with weights `like` these could have written the checkpoint.

    `steps`: those of an epoch. `validates`, `chooses`: whether it has validation samples, and samples that choose the
    epoch.
    """
    state, position = found.state, found.position
    done = (position.epoch - 1) * steps + position.batch
    _require(0 <= position.batch <= steps and state["steps_done"] == done)
    _require(all(type(state[name]) is int and 0 <= state[name] <= done for name in ("steps_done", "steps_skipped")))
    _require(type(state["skipped_in_a_row"]) is int)
    _require_like(state["weights"], like)
    if state["kept"] is not None:
        _require_like(state["kept"], like)
    _require(state["adam"].keys() == like.keys())
    moments = [moments for moments in state["adam"].values() if moments]
    _require(all(1 <= float(one["step"]) <= done for one in moments))
    for key in ADAM_MOMENTS[1:] if moments else ():
        _require_like({name: one[key] for name, one in state["adam"].items()}, like)
    _require_history(found.history, position.epoch - 1, validates=validates, chooses=chooses)


def _require_like(tensors: Tensors, like: Tensors) -> None:
    _require(_shapes(tensors) == _shapes(like))


def _shapes(tensors: Tensors) -> list[tuple[Any, ...]]:
    return [(name, one.shape, one.dtype, one.layout, one.device) for name, one in tensors.items()]


def _require_history(history: History, epochs: int, *, validates: bool, chooses: bool) -> None:
    for name, usual in asdict(History()).items():
        value = getattr(history, name)
        _require(isinstance(value, type(usual)) if usual is not None else isinstance(value, str | None))
    _require(len(history.epoch_losses) == epochs)
    for epoch in history.epoch_losses:
        _require(isinstance(epoch["train"], float))
        for name, known in (("validation", validates), ("inner", chooses)):
            _require(isinstance(epoch[name], float) if known else epoch[name] is None)


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError
