"""Faults injected on purpose, to see that they are found. A run with one is never evidence: its result names it.

`NAME@STEP` or `NAME@STEP/RANK`: in which optimizer step (from 1), and on which rank (from 0; by default 0).
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from vpoc.progress import Progress
from vpoc.training.faults import effects as faults

FAULT_KINDS = {
    "kill": "the rank is killed, as by the kernel",
    "sleep": "the rank stands still between two steps",
    "hang-forward": "the rank stands still in the forward pass",
    "hang-backward": "the rank stands still in the backward pass",
    "hang-collective": "the rank does not join the exchange with the others",
    "hang-loader": "the process that makes batches stands still: a loader worker where there are some",
    "hold-gil": "a call that never returns keeps the interpreter's lock",
    "segv": "the rank reads memory that is not its own: SIGSEGV",
    "abort": "a library gives up: SIGABRT",
    "bus-error": "a mapped file has lost its pages: SIGBUS",
    "exit-0": "the rank ends with exit status 0 in the middle of its work",
    "eat-memory": "the rank takes memory until it is killed",
    "child-eats-memory": "a process that the rank has started takes memory until it is killed",
    "fill-disk": "the disk of the output folder is full until the rank ends",
    "oom": "the device has no memory left",
    "blas-alloc-failed": "torch says HIPBLAS_STATUS_ALLOC_FAILED",
    "blas-not-initialized": "torch says HIPBLAS_STATUS_NOT_INITIALIZED",
    "blas-internal-error": "torch says HIPBLAS_STATUS_INTERNAL_ERROR",
    "blas-not-supported": "torch says HIPBLAS_STATUS_NOT_SUPPORTED",
    "illegal-access": "torch says that a kernel read memory that is not its own",
    "no-kernel-image": "torch says that it has no kernel for this GPU",
    "import-error": "a library of the runtime is not there",
    "nan": "a number of the batch is not a number",
    "flip-gradient": "a bit of the gradient flips, before it is used",
    "flip-peer-buffer": "a bit of what ranks pass to each other flips, so that one of them trains on other numbers",
    "slow": "healthy: this step and all that follow take 2 s more",
    "slow-checkpoint": "healthy: the next checkpoint takes 60 s",
    "torn-progress": "healthy: half a line and rubbish get into the progress file",
    "clock-back": "healthy: the clock of the progress lines is set back by an hour",
    "flood-log": "healthy: 200,000 lines are printed",
}
"""What each does in its step. After those called healthy the training ends well, with a result that names the drill."""
BETWEEN_RANKS = ("flip-peer-buffer", "hang-collective")
IN_RUN_FOLDER = ("torn-progress", "clock-back")
SLOW_STEP_S = 2.0
SLOW_CHECKPOINT_S = 60.0
STALL = 2**62
"""The number of a sample that nobody ever gets."""


@dataclass(frozen=True)
class InjectedFault:
    """A fault of a kind in one step of one rank."""

    kind: str
    step: int
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}/{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "InjectedFault":
        """The inverse of str; ValueError when it is none."""
        match = re.fullmatch(r"([a-z0-9-]+)@([1-9]\d{0,8})(?:/(\d{1,4}))?", text)
        if not match or match[1] not in FAULT_KINDS:
            raise ValueError(f"{text!r} is not NAME@STEP or NAME@STEP/RANK with a NAME of {', '.join(FAULT_KINDS)}")
        return cls(match[1], int(match[2]), int(match[3] or 0))


def is_now(drill: InjectedFault | None, kind: str, step: int, rank: int) -> bool:
    """Whether `drill` is of `kind` and for this step of this rank."""
    return drill is not None and (drill.kind, drill.step, drill.rank) == (kind, step, rank)


def before_step(drill: InjectedFault | None, step: int, rank: int) -> None:
    """Injects `sleep`."""
    if is_now(drill, "sleep", step, rank):
        faults.hang()


def before_forward(drill: InjectedFault | None, step: int, rank: int, model: nn.Module) -> None:
    """Injects what happens to a process as a whole, what torch raises, `slow`, and `hang-forward`."""
    if drill is None or drill.rank != rank:
        return
    if drill.kind == "slow" and step >= drill.step:
        time.sleep(SLOW_STEP_S)
    if step != drill.step:
        return
    if drill.kind in faults.RAISED_ERRORS:
        raise faults.RAISED_ERRORS[drill.kind]
    if drill.kind in faults.PROCESS_FAULTS:
        faults.PROCESS_FAULTS[drill.kind]()
    if drill.kind == "hang-forward":
        model.register_forward_pre_hook(faults.hang)


def spoil_inputs(drill: InjectedFault | None, step: int, rank: int, inputs: torch.Tensor) -> torch.Tensor:
    """`inputs`, with a NaN in the step of the drill `nan`."""
    if not is_now(drill, "nan", step, rank):
        return inputs
    spoilt = inputs.clone()
    spoilt.view(-1)[0] = float("nan")
    return spoilt


def spoil_backward(drill: InjectedFault | None, step: int, rank: int, loss: torch.Tensor) -> torch.Tensor:
    """`loss`; in the step of the drill `hang-backward` one whose backward pass never ends."""
    if not is_now(drill, "hang-backward", step, rank):
        return loss
    endless: torch.Tensor = _Endless.apply(loss)  # type: ignore[no-untyped-call]
    return endless


class _Endless(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:
        faults.hang()


def before_exchange(drill: InjectedFault | None, step: int, rank: int) -> None:
    """Injects `hang-collective`."""
    if is_now(drill, "hang-collective", step, rank):
        faults.hang()


def spoil_gradient(drill: InjectedFault | None, kind: str, step: int, rank: int, model: nn.Module) -> None:
    """Flips a bit of one gradient in the step of a drill of `kind`: the highest of its exponent, or of its fraction."""
    if not is_now(drill, kind, step, rank):
        return
    bit = 30 if kind == "flip-gradient" else 22
    gradient = next(p.grad for p in model.parameters() if p.grad is not None)
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    words = local.view(-1).view(torch.int32)
    words[0] ^= 1 << bit


def spoil_request(drill: InjectedFault | None, step: int, rank: int, numbers: list[int]) -> list[int]:
    """Numbers of samples to load; in the step of the drill `hang-loader` one of them is STALL."""
    return [STALL, *numbers[1:]] if is_now(drill, "hang-loader", step, rank) else numbers


class Stalling(Dataset[list[torch.Tensor]]):
    """`samples`, but that whoever asks for STALL stands still: the process that makes batches."""

    def __init__(self, samples: Dataset[list[torch.Tensor]]) -> None:
        self._samples = samples

    def __getitem__(self, number: int) -> list[torch.Tensor]:
        return faults.hang() if number == STALL else self._samples[number]


def after_step(drill: InjectedFault | None, step: int, rank: int, progress: Progress, output: Path) -> None:
    """Injects what happens to files: `torn-progress`, `clock-back`, and `fill-disk` in the folder `output`."""
    if is_now(drill, "torn-progress", step, rank) and progress.path:
        faults.tear(progress.path)
    if is_now(drill, "clock-back", step, rank):
        progress.wall = faults.an_hour_ago
    if is_now(drill, "fill-disk", step, rank):
        faults.fill_disk(output)


def during_checkpoint(drill: InjectedFault | None, steps_before: int, steps: int, rank: int) -> None:
    """Injects `slow-checkpoint` in that after `steps`, the one before it having been after `steps_before`."""
    if drill and (drill.kind, drill.rank) == ("slow-checkpoint", rank) and steps_before < drill.step <= steps:
        time.sleep(SLOW_CHECKPOINT_S)
