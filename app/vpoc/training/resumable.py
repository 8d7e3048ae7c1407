"""Refuses checkpoints that the training could not have written itself, because anybody may have made the file."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
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
    moments = {name: one for name, one in state["adam"].items() if one}
    _require(all(1 <= one["step"].item() <= done for one in moments.values()))
    for key in ADAM_MOMENTS[1:]:
        _require_like({name: one[key] for name, one in moments.items()}, {name: like[name] for name in moments})
    _require_history(found.history, position.epoch - 1, validates=validates, chooses=chooses)


def _require_like(tensors: Tensors, like: Tensors) -> None:
    _require(_shapes(tensors) == _shapes(like))


def _shapes(tensors: Tensors) -> list[tuple[Any, ...]]:
    return [(name, one.shape, one.dtype, one.layout, one.device) for name, one in tensors.items()]


def _require_history(history: History, epochs: int, *, validates: bool, chooses: bool) -> None:
    for name, usual in asdict(History()).items():
        value = getattr(history, name)
        _require(isinstance(value, type(usual)) if usual is not None else isinstance(value, str | None))
    # A text among the numbers would reach the terminal, and what is not finite no file.
    _require(_are_numbers(asdict(replace(history, injected_fault=None))))
    _require(all(step.keys() == {"step", "loss", "gradient_norm"} for step in history.first_steps))
    _require([epoch["epoch"] for epoch in history.epoch_losses] == list(range(1, epochs + 1)))
    for epoch in history.epoch_losses:
        _require(isinstance(epoch["train"], float))
        for name, known in (("validation", validates), ("inner", chooses)):
            _require(isinstance(epoch[name], float) if known else epoch[name] is None)


def _are_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _are_numbers(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_are_numbers, value))
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError
