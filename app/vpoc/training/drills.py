"""Faults injected on purpose, to see that they are found. A run with one is never evidence: its result names it.

`NAME@STEP` or `NAME@STEP/RANK`: in which optimizer step (from 1), and on which rank (from 0; by default 0).
"""

import os
import re
import signal
import time
from dataclasses import dataclass

import torch
from torch import nn

KINDS = {
    "kill": "the rank is killed, as by the kernel",
    "sleep": "the rank stands still",
    "oom": "the device has no memory left",
    "nan": "a number of the batch is not a number",
    "flip-gradient": "a bit of the gradient flips, before it is used",
    "flip-peer-buffer": "a bit of what ranks pass to each other flips, so that one of them trains on other numbers",
}


@dataclass(frozen=True)
class Drill:
    """A fault of a kind in one step of one rank."""

    kind: str
    step: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "Drill":
        """The inverse of str; ValueError when it is none."""
        match = re.fullmatch(r"([a-z-]+)@([1-9]\d{0,8})(?:/(\d{1,4}))?", text)
        if not match or match[1] not in KINDS:
            raise ValueError(f"{text!r} is not NAME@STEP or NAME@STEP/RANK with a NAME of {', '.join(KINDS)}")
        return cls(match[1], int(match[2]), int(match[3] or 0))


def is_now(drill: Drill | None, kind: str, step: int, rank: int) -> bool:
    """Whether `drill` is of `kind` and for this step of this rank."""
    return drill is not None and (drill.kind, drill.step, drill.rank) == (kind, step, rank)


def before_step(drill: Drill | None, step: int, rank: int) -> None:
    """Injects kill, sleep and oom when it is their step."""
    if is_now(drill, "kill", step, rank):
        os.kill(os.getpid(), signal.SIGKILL)
    while is_now(drill, "sleep", step, rank):
        time.sleep(3600)
    if is_now(drill, "oom", step, rank):
        # torch.OutOfMemoryError is the newer name.
        raise torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 1024.00 GiB (drill)")


def spoil_inputs(drill: Drill | None, step: int, rank: int, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs`, with a NaN in the step of the drill `nan`."""
    if not is_now(drill, "nan", step, rank):
        return inputs
    spoilt = inputs.clone()
    spoilt.view(-1)[0] = float("nan")
    return spoilt


def spoil_gradient(drill: Drill | None, kind: str, step: int, rank: int, model: nn.Module) -> None:
    """Flips a bit of one gradient in the step of a drill of `kind`: the highest of its exponent, or of its fraction."""
    if not is_now(drill, kind, step, rank):
        return
    bit = 30 if kind == "flip-gradient" else 22
    gradient = next(p.grad for p in model.parameters() if p.grad is not None)
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    words = local.view(-1).view(torch.int32)
    words[0] ^= 1 << bit
