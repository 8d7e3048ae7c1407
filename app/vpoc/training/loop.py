"""The training loop, as most people write it: loader workers, pinned memory, copies per step, autocast with scaler."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from vpoc.data.mix import words
from vpoc.errors import UserError
from vpoc.progress import Progress
from vpoc.training.options import TrainOptions
from vpoc.training.samples import Samples

INITIAL_SCALE = 2.0**10
"""Lower than torch's 2^16: there the first float16 steps overflow and are skipped, and could not be compared."""
MAX_SKIPPED_IN_A_ROW = 10
"""The scale is halved at each; from 2^10, ten halvings leave no scaling at all."""


@dataclass(frozen=True)
class Step:
    """One optimizer step: its number from 1, the loss before it, the norm of the gradient, and how long it took."""

    number: int
    loss: float
    gradient_norm: float
    seconds: float
    samples: int


@dataclass(frozen=True)
class Evaluation:
    """Mean binary log-loss and share of right answers, at probability 0.5."""

    loss: float
    accuracy: float


class Trainer:
    """A model on its device, with what adjusts it. `dtype` names the type of the forward pass."""

    def __init__(self, model: nn.Module, device: torch.device, options: TrainOptions) -> None:
        self.model = model.to(device)
        self.device = device
        self.options = options
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.learning_rate)
        self.criterion = nn.BCEWithLogitsLoss()
        self.autocast_dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
        self.dtype = str(self.autocast_dtype).removeprefix("torch.") if options.use_mixed_precision else "float32"
        scaling = options.use_mixed_precision and device.type == "cuda"
        # torch.amp.GradScaler came with torch 2.3, which deprecated the older name.
        scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        self.scaler = scaler(init_scale=INITIAL_SCALE, enabled=scaling)
        self.steps_done = 0
        self.steps_skipped = 0
        self.skipped_in_a_row = 0

    def epoch(self, samples: Samples, epoch: int) -> Iterator[Step]:
        """Train on every sample once, in the order of `epoch` (from 1); yields each step after it is done.

        UserError with exit code 4 when the loss is not finite, or the gradient is not: without a scaler at once, with
        one, which then leaves the update out, after more than 10 in a row. The weights are then those before the step.
        """
        self.model.train()
        order = batch_order(len(samples), self.options.seed, epoch)
        started = time.perf_counter()
        for inputs, labels in self._loader(samples, order):
            loss, gradient_norm = self._step(self._to_device(inputs), self._to_device(labels))
            self.steps_done += 1
            now = time.perf_counter()
            yield Step(self.steps_done, loss, gradient_norm, now - started, len(labels))
            started = now

    def _step(self, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._logits(inputs), labels)
        value = loss.item()
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norms = [torch.linalg.vector_norm(p.grad) for p in self.model.parameters() if p.grad is not None]
        gradient_norm = torch.linalg.vector_norm(torch.stack(norms)).item()
        if not math.isfinite(gradient_norm) and not self.scaler.is_enabled():
            raise self._diverged(f"the norm of the gradient is {gradient_norm}")
        self._update(gradient_norm)
        return value, gradient_norm

    def _update(self, gradient_norm: float) -> None:
        """Adjust the weights; the scaler leaves them alone, and lowers its scale, when the gradient is not finite."""
        # Asking for the scale waits for the device, so that it is done for suspects only.
        suspect = not math.isfinite(gradient_norm)
        scale = self.scaler.get_scale() if suspect else 0.0
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if not suspect:
            self.skipped_in_a_row = 0
            return
        if self.scaler.get_scale() >= scale:
            # Finite, but so large that its norm is not: the scaler took it, and Adam will not recover from it.
            raise self._diverged(f"the norm of the gradient is {gradient_norm}")
        self.steps_skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise self._diverged(f"the gradient was not finite {self.skipped_in_a_row} times in a row")

    def require_sound(self) -> None:
        """UserError with exit code 4 unless the last update was made and all weights are finite."""
        if self.skipped_in_a_row:
            raise self._diverged("the gradient is not finite, and it was the last step", self.steps_done)
        if not all(torch.isfinite(tensor).all() for tensor in self.model.state_dict().values()):
            raise self._diverged("there are weights that are not finite", self.steps_done)

    def _diverged(self, what: str, step: int | None = None) -> UserError:
        return UserError(
            f"step {step or self.steps_done + 1}: {what}; training stopped and no model was written; "
            "lower --learning-rate or leave out --use-mixed-precision",
            exit_code=4,
        )

    @torch.no_grad()
    def evaluate(self, samples: Samples, progress: Progress) -> Evaluation:
        """Loss and accuracy of the present weights on `samples`, in file order.

        UserError with exit code 4 when the loss is not finite.
        """
        self.model.eval()
        loss, right, done = 0.0, 0, 0
        started = time.perf_counter()
        for inputs, labels in self._loader(samples, list(range(len(samples)))):
            target = self._to_device(labels)
            logits = self._logits(self._to_device(inputs))
            loss += self._loss(logits, target).item() * len(labels)
            right += int(((logits > 0) == (target > 0.5)).sum().item())
            done += len(labels)
            now = time.perf_counter()
            progress.step(done, now - started)
            started = now
        if not math.isfinite(loss):
            raise self._diverged(f"the validation loss is {loss}", self.steps_done)
        return Evaluation(loss / len(samples), right / len(samples))

    def _loader(self, samples: Samples, order: list[int]) -> "DataLoader[tuple[torch.Tensor, ...]]":
        return DataLoader(
            TensorDataset(torch.from_numpy(samples.inputs), torch.from_numpy(samples.labels)),
            batch_size=self.options.batch_size,
            sampler=order,
            num_workers=self.options.loader_workers,
            pin_memory=self.device.type == "cuda",
        )

    def _to_device(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.to(self.device, non_blocking=True)

    def _logits(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.options.use_mixed_precision):
            logits: torch.Tensor = self.model(inputs).squeeze(1)
        return logits

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.criterion(logits.float(), labels)
        return loss


def batch_order(samples: int, seed: int, epoch: int) -> list[int]:
    """The order of the samples in `epoch`: the same on every device, torch version and number of loader workers."""
    return [int(index) for index in words(seed, epoch, samples).argsort(kind="stable")]
