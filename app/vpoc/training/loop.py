"""Optimizer steps, the same for every model, device, strategy and feed."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from vpoc.errors import UserError
from vpoc.progress import Progress
from vpoc.step_stage import BACKWARD, EXCHANGE, FORWARD, OUTSIDE, UPDATE, WAITING, StepStage
from vpoc.training.inputs.feeds import Batch, Feed, InOrder, Micro, loaded, resident_in_order
from vpoc.training.inputs.samples import Samples
from vpoc.training.kept_states import KeptStates
from vpoc.training.ledger import Ledger
from vpoc.training.precision import autocast, forward_dtype
from vpoc.training.schedule import rate_of
from vpoc.training.strategies.single import Single
from vpoc.training.train_options import TrainOptions

INITIAL_SCALE = 2.0**10
"""Initial loss scale. With torch's 2^16 the first float16 steps overflow and are skipped, and could not be compared."""
FIRST_STEPS = 16
"""Number of first steps whose loss and gradient norm are kept, to compare them with a reference."""
ADAM_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
MAX_SKIPPED_IN_A_ROW = 10
"""The scale is halved at each skipped step; from 2^10, ten halvings leave no scaling at all."""

Requests = Callable[[], tuple[float, ...]]
"""Returns this rank's requests after a step: numbers that are summed over the ranks. `tuple` returns none."""
AdamMoments = dict[str, dict[str, torch.Tensor]]
"""The state of Adam by the parameter's name and by ADAM_MOMENTS."""


@dataclass(frozen=True)
class Step:
    """One optimizer step, or several that were made together; `number`, from 1, is that of the last.

    `losses` [steps]: the loss before each step, over the batch of all ranks.
    `divisors` [steps]: the divisor of the sum of each loss.
    `gradient_norm`: of the last step.
    `seconds`: per step.
    `samples`: the number of samples.
    `requests`: the requests of the ranks, summed over them.
    """

    number: int
    losses: Sequence[float]
    divisors: Sequence[float]
    gradient_norm: float
    seconds: float
    samples: int
    requests: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The loss before the last step."""
        return self.losses[-1]


@dataclass(frozen=True)
class ValidationScore:
    """Mean binary log-loss, weighted as in training, and accuracy at probability 0.5."""

    loss: float
    accuracy: float


class Trainer:
    """A model on its devices with its optimizer. `dtype` names the type of the forward pass.

    It sets `stage` to its place in a step, and gives `states` the weights before each step that is to be kept. `rate`:
    the learning rate of a step.
    """

    def __init__(self, strategy: Single, options: TrainOptions, ledger: Ledger, stage: StepStage) -> None:
        self.strategy = strategy
        self.options = options
        self.ledger = ledger
        self.stage = stage
        self.states = KeptStates(None, "", frozenset(), 0)
        self.device = strategy.devices[0]
        self.rate = rate_of("constant", options.learning_rate, 0)
        self.make_optimizer()
        self.dtype = str(forward_dtype(options, self.device)).removeprefix("torch.")
        scaling = self.dtype == "float16"
        # torch.amp.GradScaler, for any device, exists since torch 2.3, which deprecated the older one, for GPUs only.
        arguments: dict[str, Any] = {"init_scale": INITIAL_SCALE, "enabled": scaling}
        newer = getattr(torch.amp, "GradScaler", None)
        self.scaler = newer(self.device.type, **arguments) if newer else torch.cuda.amp.GradScaler(**arguments)
        self.steps_done = 0
        # Reset the stage of a model that was trained before.
        stage.at(0, OUTSIDE)
        self.steps_skipped = 0
        self.skipped_in_a_row = 0

    def make_optimizer(self) -> None:
        """Create an AdamW for all parameters."""
        self.parameters = list(self.strategy.forward.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.options.learning_rate, weight_decay=self.options.weight_decay
        )

    def moments(self) -> AdamMoments:
        """Return the state of Adam for each parameter, on the CPU; empty before the first step.

        All ranks must call it.
        """
        strategy, found = self.strategy, {}
        for name, parameter in strategy.model.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            found[name] = {key: strategy.whole(kept[key]) for key in ADAM_MOMENTS if key in kept}
        return found

    def load_moments(self, moments: AdamMoments) -> None:
        """Load what `moments` returned, whatever strategy and devices they were taken with; set `steps_done` first."""
        for name, parameter in self.strategy.model.named_parameters():
            kept = moments[name]
            if kept:
                # Adam keeps the number of steps on the CPU, and its moments on the device of the parameter.
                spread = {key: self.strategy.part(kept[key], parameter) for key in ADAM_MOMENTS[1:]}
                self.optimizer.state[parameter] = {"step": kept["step"].clone(), **spread}

    def epoch(self, feed: Feed, epoch: int, first: int, requests: Requests) -> Iterator[Step]:
        """Train on the batches of `epoch` (from 1) from number `first` (from 0) on; yield each step after it is done.

        UserError with exit code 4 when the loss or the gradient is not finite. Without a scaler a gradient that is not
        finite ends the training at once; a scaler skips the update, and only more than 10 such steps in a row end it.
        The weights are then those before the step.
        """
        self.strategy.forward.train()
        started = time.perf_counter()
        batches = feed.epoch(epoch, first)
        while True:
            number = self.steps_done + 1
            self.stage.at(number, WAITING)
            batch = next(batches, None)
            if batch is None:
                break
            self.keep_state(number)
            self.ledger.to("device")
            loss, gradient_norm, asked = self._step(batch, number, requests)
            self.steps_done = number
            self.ledger.to("bookkeeping")
            self.stage.at(number, OUTSIDE)
            now = time.perf_counter()
            yield Step(number, [loss], [batch.divisor], gradient_norm, now - started, batch.samples, asked)
            started = now
        self.stage.at(self.steps_done, OUTSIDE)

    def keep_state(self, number: int) -> None:
        """Keep the weights before the step `number`, if that step was selected."""
        if number in self.states.steps:
            self.ledger.to("checkpoint")
            self.states.before(number, self.strategy.weights)

    def _step(self, batch: Batch, number: int, requests: Requests) -> tuple[float, float, tuple[float, ...]]:
        strategy, at = self.strategy, self.stage.at
        self._forget_gradient()
        losses = []
        for part in range(batch.parts):
            at(number, WAITING)
            micro = next(batch.micros)
            at(number, FORWARD)
            with strategy.exchange(last=part == batch.parts - 1):
                loss = self._share_of_loss(self.logits(micro.inputs), micro, batch.divisor)
                at(number, BACKWARD)
                scaled = loss if strategy.loss_factor == 1 else loss * strategy.loss_factor
                self.scaler.scale(scaled).backward()
            losses.append(loss.detach())
        # Add in double precision, so that parts add up to the same on one device and on several ranks.
        mine = float(losses[0] if len(losses) == 1 else torch.stack(losses).double().sum())
        at(number, EXCHANGE)
        value, *asked = strategy.synchronise([mine, *requests()])
        at(number, UPDATE)
        if not math.isfinite(value):
            raise self.diverged(f"the loss is {value}")
        gradient_norm = self._gradient_norm()
        if not math.isfinite(gradient_norm) and not self.scaler.is_enabled():
            raise self.diverged(f"the norm of the gradient is {gradient_norm}")
        if 0 < self.options.clip_norm < gradient_norm < math.inf:
            self._scale_gradient(self.options.clip_norm / gradient_norm)
        self._update(number, gradient_norm)
        return value, gradient_norm, tuple(asked)

    def _forget_gradient(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _gradient_norm(self) -> float:
        """Return the strategy's norm, for the gradient of the unscaled loss."""
        self.scaler.unscale_(self.optimizer)
        return self.strategy.gradient_norm()

    def _scale_gradient(self, factor: float) -> None:
        self.strategy.scale_gradient(factor)

    def _update(self, number: int, gradient_norm: float) -> None:
        """Update the weights; if the gradient is not finite, the scaler skips the update and lowers its scale."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        # Reading the scale waits for the device, so read it only if the gradient is suspect.
        suspect = not math.isfinite(gradient_norm)
        scale = self.scaler.get_scale() if suspect else 0.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not suspect:
            self.skipped_in_a_row = 0
            return
        if self.scaler.get_scale() >= scale:
            # The gradient is finite, but its norm is not: the scaler made the update, and Adam will not recover from
            # it.
            raise self.diverged(f"the norm of the gradient is {gradient_norm}")
        self.steps_skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise self.diverged(f"the gradient was not finite {self.skipped_in_a_row} times in a row")

    def require_finite(self) -> None:
        """Raise UserError with exit code 4 unless all weights are finite; all ranks must call it."""
        if not all(torch.isfinite(tensor).all() for tensor in self.strategy.weights().values()):
            raise self.diverged("there are weights that are not finite", self.steps_done)

    def diverged(self, what: str, step: int | None = None) -> UserError:
        """Return the error that ends a training whose numbers are not finite in `step`, by default the next one."""
        return UserError(
            f"step {step or self.steps_done + 1}: {what}; training stopped and no model was written; "
            "lower --learning-rate or leave out --use-mixed-precision",
            exit_code=4,
        )

    @torch.no_grad()
    def evaluate(self, samples: Samples, batch_size: int, progress: Progress, done_before: int = 0) -> ValidationScore:
        """Return loss and accuracy of the present weights on `samples`, in file order; every rank computes all of them.

        `done_before`: the number of samples done before in the same phase. UserError with exit code 4 when the loss is
        not finite.
        """
        self.strategy.forward.eval()
        loss, right, done = 0.0, 0, done_before
        started = time.perf_counter()
        for micro in self._in_order(samples, batch_size):
            logits = self.logits(micro.inputs)
            loss += self._loss(logits, micro).item()
            right += int(((logits > 0) == (micro.labels > 0.5)).sum().item())
            done += len(micro.labels)
            now = time.perf_counter()
            progress.step(done, now - started)
            started = now
        if not math.isfinite(loss):
            raise self.diverged(f"the validation loss is {loss}", self.steps_done)
        return ValidationScore(loss / samples.weight_sum, right / len(samples))

    def _in_order(self, samples: Samples, batch_size: int) -> Iterator[Micro]:
        if self.options.loop == "resident":
            yield from resident_in_order(samples, batch_size, self.device)
            return
        batches = InOrder(len(samples), batch_size)
        for tensors in loaded(samples, batches, self.device, self.options.loader_workers):
            yield Micro(*(tensor.to(self.device, non_blocking=True) for tensor in tensors))

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one logit per sample, [batch], computed in the requested type."""
        with autocast(self.options, self.device):
            logits: torch.Tensor = self.strategy.forward(inputs).squeeze(1)
        return logits

    def _share_of_loss(self, logits: torch.Tensor, micro: Micro, divisor: float) -> torch.Tensor:
        """Return the contribution of the micro-batch to the loss of its batch."""
        if self.device.type != "cpu":
            return self._loss(logits, micro) / divisor
        # Bitwise the same derivative in fewer calls: 1 / divisor is rounded once, like the derivative of a division.
        factors = micro.weights * float(np.float32(1) / np.float32(divisor))
        return functional.binary_cross_entropy_with_logits(logits.float(), micro.labels, factors, reduction="sum")

    def _loss(self, logits: torch.Tensor, micro: Micro) -> torch.Tensor:
        """Return the sum over the micro-batch of weight times log-loss."""
        each = functional.binary_cross_entropy_with_logits(logits.float(), micro.labels, reduction="none")
        return (each * micro.weights).sum()
