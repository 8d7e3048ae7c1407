"""Refuses checkpoints that the training could not have written itself, because anybody may have made the file."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from vpoc.training.checkpoint import Checkpoint, History
from vpoc.training.faults.kinds import InjectedFault
from vpoc.training.loop import ADAM_MOMENTS, FIRST_STEPS

LARGEST_SCALE = torch.finfo(torch.float32).max
Tensors = Mapping[str, torch.Tensor]


def require_resumable(
    found: Checkpoint, like: Tensors, scaler: Mapping[str, Any], steps: int, *, validates: bool, chooses: bool
) -> None:
    """Raise an error, of any kind, unless a training with weights `like` these could have written the checkpoint.

    `scaler`: the state of its loss scaler, empty without one. `steps`: those of an epoch. `validates`, `chooses`:
    whether it has validation samples, and samples that choose the epoch.
    """
    state, position = found.state, found.position
    done = (position.epoch - 1) * steps + position.batch
    _require(0 <= position.batch <= steps and state["steps_done"] == done)
    _require(all(type(state[name]) is int and 0 <= state[name] <= done for name in ("steps_done", "steps_skipped")))
    _require(type(state["skipped_in_a_row"]) is int and 0 <= state["skipped_in_a_row"] <= state["steps_skipped"])
    _require_like(state["weights"], like)
    _require((state["kept"] is not None) == (chooses and position.epoch > 1))
    if state["kept"] is not None:
        _require_like(state["kept"], like)
        _require(all(tensor.isfinite().all() for tensor in state["kept"].values()))
    if scaler and state["scaler"]:
        _require_scaler(state["scaler"], scaler)
    _require(state["adam"].keys() == like.keys())
    moments = {name: one for name, one in state["adam"].items() if one}
    _require_like({name: one["step"] for name, one in moments.items()}, dict.fromkeys(moments, torch.zeros(())))
    # Their type holds not every number above 2^24, and may have rounded this one up.
    most = torch.tensor(float(done)).item()
    _require(all(1 <= one["step"].item() <= most for one in moments.values()))
    for key in ADAM_MOMENTS[1:]:
        _require_like({name: one[key] for name, one in moments.items()}, {name: like[name] for name in moments})
    _require_history(found.history, position.epoch - 1, done, validates=validates, chooses=chooses)
    loss, weight = found.history.loss, found.history.weight
    _require(math.isfinite(loss / weight) and weight > 0 if position.batch else loss == weight == 0)


def _require_like(tensors: Tensors, like: Tensors) -> None:
    _require(_shapes(tensors) == _shapes(like))


def _shapes(tensors: Tensors) -> list[tuple[Any, ...]]:
    return [
        (name, one.shape, one.dtype, one.layout, one.device, one.requires_grad, one.is_contiguous())
        for name, one in tensors.items()
    ]


def _require_scaler(state: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    scale, good_steps = state["scale"], state["_growth_tracker"]
    _require(state == {**usual, "scale": scale, "_growth_tracker": good_steps})
    _require(isinstance(scale, float) and 0 < scale <= LARGEST_SCALE)
    _require(type(good_steps) is int and 0 <= good_steps < usual["growth_interval"])


def _require_history(history: History, epochs: int, done: int, *, validates: bool, chooses: bool) -> None:
    for name, usual in asdict(History()).items():
        value = getattr(history, name)
        _require(isinstance(value, type(usual)) if usual is not None else isinstance(value, str | None))
    # A text among the numbers would reach the terminal, and what is not finite no file.
    _require(_are_numbers(asdict(replace(history, injected_fault=None))))
    _require(all(seconds >= 0 for seconds in history.seconds.values()))
    _require(math.isfinite(sum(history.seconds.values())))
    fault = history.injected_fault
    _require(fault is None or str(InjectedFault.parse(fault)) == fault)
    _require(all(type(step) is int for step in history.resumed_at))
    _require(all(step.keys() == {"step", "loss", "gradient_norm"} for step in history.first_steps))
    _require([step["step"] for step in history.first_steps] == list(range(1, min(done, FIRST_STEPS) + 1)))
    _require(all(isinstance(step["loss"], float) for step in history.first_steps))
    _require(all(isinstance(step["gradient_norm"], float | None) for step in history.first_steps))
    # A list of any number of epochs would fill the memory.
    _require(len(history.epoch_losses) == epochs)
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
