"""Injects a fault into the model, the exchange, the loader or the files, without changes to the training loop."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset

from vpoc.progress import Progress
from vpoc.training.faults import effects
from vpoc.training.faults.kinds import InjectedFault
from vpoc.training.strategies.single import Single

_Step = TypeVar("_Step")
Items = Dataset[tuple[int, torch.Tensor]]
SLOW_STEP_S = 2.0
SLOW_CHECKPOINT_S = 60.0
STALL = 2**62
"""A sample number that no training requests."""
EXPONENT_BIT, FRACTION_BIT = 30, 22
"""The highest bit of the exponent and of the fraction of a float32."""


class Counting(Protocol):
    """The part of a Trainer that an injector needs."""

    @property
    def strategy(self) -> Single:
        """The model and its exchange with other ranks."""

    @property
    def steps_done(self) -> int:
        """Optimizer steps made."""


class NoFault:
    """The injector of a training without a fault: does nothing."""

    def arm(self, trainer: Counting) -> None:
        """Prepare the model and the exchange of `trainer`, once."""

    def steps(self, steps: Iterator[_Step], trainer: Counting, progress: Progress, output: Path) -> Iterator[_Step]:  # noqa: ARG002 - for the fault
        """Yield `steps` of `trainer`; inject faults of files, and faults between steps, on the way.

        `output`: the folder on the disk that training writes to.
        """
        yield from steps

    def requested(self, step: int, numbers: list[int]) -> list[int]:  # noqa: ARG002 - for the fault
        """Return the numbers of the samples to load for `step`."""
        return numbers

    def items(self, items: Items) -> Items:
        """Return the samples that a loader fetches from."""
        return items

    def checkpoint(self, steps_before: int, steps: int) -> None:
        """Called at a checkpoint after `steps`; the previous one was after `steps_before`."""


class FaultInjector(NoFault):
    """Injects `fault` into this process."""

    def __init__(self, fault: InjectedFault) -> None:
        self._fault = fault
        self._trainer: Counting | None = None
        self._last_forward = 0

    def arm(self, trainer: Counting) -> None:
        """See NoFault.arm: installs hooks on the model, and a wrapper around the strategy's exchange."""
        self._trainer = trainer
        trainer.strategy.model.register_forward_pre_hook(self._before_forward)
        trainer.strategy.model.register_forward_hook(self._after_forward)
        honest = trainer.strategy.synchronise

        def synchronise(numbers: Sequence[float]) -> list[float]:
            return self._exchange(trainer.strategy, honest, numbers)

        trainer.strategy.synchronise = synchronise  # type: ignore[method-assign]

    def steps(self, steps: Iterator[_Step], trainer: Counting, progress: Progress, output: Path) -> Iterator[_Step]:
        """See NoFault.steps."""
        while True:
            self._between_steps(trainer.steps_done + 1)
            step = next(steps, None)
            if step is None:
                return
            self._after_step(trainer.steps_done, progress, output)
            yield step

    def requested(self, step: int, numbers: list[int]) -> list[int]:
        """See NoFault.requested: one of the numbers is STALL."""
        return [STALL, *numbers[1:]] if self._is_now("hang-loader", step) else numbers

    def items(self, items: Items) -> Items:
        """See NoFault.items: a process that asks for STALL hangs."""
        return _StallingItems(items)

    def checkpoint(self, steps_before: int, steps: int) -> None:
        """See NoFault.checkpoint."""
        if self._fault.kind == "slow-checkpoint" and steps_before < self._fault.step <= steps:
            time.sleep(SLOW_CHECKPOINT_S)

    def _is_now(self, kind: str, step: int) -> bool:
        return (self._fault.kind, self._fault.step) == (kind, step)

    def _between_steps(self, step: int) -> None:
        if self._is_now("sleep", step):
            effects.hang()

    def _before_forward(self, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        """Inject faults of the whole process, errors that torch raises, `slow`, `nan` and `hang-forward`."""
        assert self._trainer is not None
        step, fault = self._trainer.steps_done + 1, self._fault
        if not model.training or step == self._last_forward:
            return None
        self._last_forward = step
        if fault.kind == "slow" and step >= fault.step:
            time.sleep(SLOW_STEP_S)
        if step != fault.step:
            return None
        if fault.kind in effects.RAISED_ERRORS:
            raise effects.RAISED_ERRORS[fault.kind]
        if fault.kind in effects.PROCESS_FAULTS:
            effects.PROCESS_FAULTS[fault.kind]()
        if fault.kind == "hang-forward":
            effects.hang()
        if fault.kind != "nan":
            return None
        damaged = inputs[0].clone()
        damaged.view(-1)[0] = float("nan")
        return damaged, *inputs[1:]

    def _after_forward(self, model: nn.Module, _inputs: Any, logits: torch.Tensor) -> torch.Tensor | None:
        """Inject `hang-backward`: logits whose backward pass never ends."""
        assert self._trainer is not None
        if not model.training or not self._is_now("hang-backward", self._trainer.steps_done + 1):
            return None
        endless: torch.Tensor = _Endless.apply(logits)  # type: ignore[no-untyped-call]
        return endless

    def _exchange(self, strategy: Single, honest: Any, numbers: Sequence[float]) -> list[float]:
        """Inject faults of gradients, and `hang-collective`, around the exchange with other ranks."""
        assert self._trainer is not None
        step = self._trainer.steps_done + 1
        if self._is_now("flip-gradient", step):
            _flip(strategy.model, EXPONENT_BIT)
        if self._is_now("hang-collective", step):
            effects.hang()
        peers = self._is_now("flip-peer-buffer", step)
        flipped = peers and strategy.flip_next_exchange()
        sums: list[float] = honest(numbers)
        if peers and not flipped:
            _flip(strategy.model, FRACTION_BIT)
        return sums

    def _after_step(self, step: int, progress: Progress, output: Path) -> None:
        if self._is_now("torn-progress", step) and progress.path:
            effects.tear(progress.path)
        if self._is_now("clock-back", step):
            progress.wall = effects.an_hour_ago
        if self._is_now("fill-disk", step):
            effects.fill_disk(output)


def injector_of(fault: InjectedFault | None, rank: int) -> NoFault:
    """Return the injector of `fault` for the process `rank`."""
    return FaultInjector(fault) if fault is not None and fault.rank == rank else NoFault()


class _Endless(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:
        effects.hang()


class _StallingItems(Items):
    """The samples `items`; a process that asks for STALL hangs."""

    def __init__(self, items: Items) -> None:
        self._items = items

    def __getitem__(self, number: int) -> tuple[int, torch.Tensor]:
        return effects.hang() if number == STALL else self._items[number]


def _flip(model: nn.Module, bit: int) -> None:
    """Flip a bit of the first number of the first gradient."""
    gradient = next(p.grad for p in model.parameters() if p.grad is not None)
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    words = local.view(-1).view(torch.int32)
    words[0] ^= 1 << bit
