"""Optimizer steps by JAX; the rest of the training is that of torch's trainer."""

import math
from typing import Any

import jax
import numpy as np
import torch

from vpoc.models.by_name import Network
from vpoc.step_stage import BACKWARD, EXCHANGE, UPDATE, WAITING, StepStage
from vpoc.training.inputs.feeds import Batch
from vpoc.training.ledger import Ledger
from vpoc.training.loop import ADAM_MOMENTS, AdamMoments, Requests, Trainer
from vpoc.training.strategies.single import LARGEST_NORM, Single
from vpoc.training.train_options import TrainOptions
from vpoc.training.with_jax import jax_mlp
from vpoc.training.with_jax.jax_device import JaxDevice


class OnJax(Single):
    """The weights on a device of JAX. The network itself stays on the CPU and is not changed after the start."""

    def __init__(self, model: Network, found: JaxDevice) -> None:
        super().__init__(model, [torch.device("cpu")])
        self.found = found
        self.names = list(model.state_dict())
        self.parameters = self.arrays(model.state_dict())

    def arrays(self, tensors: dict[str, torch.Tensor]) -> jax_mlp.Arrays:
        """Return the tensors by parameter name, as arrays on the device."""
        return tuple(jax.device_put(tensors[name].numpy().copy(), self.found.device) for name in self.names)

    def tensors(self, arrays: jax_mlp.Arrays) -> dict[str, torch.Tensor]:
        """Undo `arrays`."""
        return {name: torch.from_numpy(np.array(array)) for name, array in zip(self.names, arrays, strict=True)}

    def weights(self) -> dict[str, torch.Tensor]:
        """See Single.weights."""
        return self.tensors(self.parameters)

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """See Single.load_weights."""
        self.parameters = self.arrays(weights)

    def described(self) -> list[dict[str, Any]]:
        """See Single.described."""
        return [self.found.facts()]


class JaxTrainer(Trainer):
    """A Trainer whose steps JAX computes: an mlp in float32 on one device."""

    strategy: OnJax

    def __init__(self, strategy: OnJax, options: TrainOptions, ledger: Ledger, stage: StepStage) -> None:
        super().__init__(strategy, options, ledger, stage)
        self._gradient, self._logits = jax.jit(jax_mlp.gradient), jax.jit(jax_mlp.logits)
        self._adamw = jax.jit(jax_mlp.adamw)

    def make_optimizer(self) -> None:
        """Create the moments of AdamW as before the first step."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in self.strategy.weights().items()}
        self._means, self._squares = self.strategy.arrays(zeros), self.strategy.arrays(zeros)

    def moments(self) -> AdamMoments:
        """See Trainer.moments."""
        if not self.steps_done:
            return {name: {} for name in self.strategy.names}
        kept = [self.strategy.tensors(arrays) for arrays in (self._means, self._squares)]
        step = torch.tensor(float(self.steps_done))
        return {
            name: dict(zip(ADAM_MOMENTS, (step.clone(), *(one[name] for one in kept)), strict=True))
            for name in self.strategy.names
        }

    def load_moments(self, moments: AdamMoments) -> None:
        """See Trainer.load_moments."""
        if all(moments.values()):
            self._means, self._squares = (
                self.strategy.arrays({name: kept[key] for name, kept in moments.items()}) for key in ADAM_MOMENTS[1:]
            )

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """As Trainer.logits, computed by JAX; on the CPU."""
        return torch.from_numpy(np.array(self._logits(self.strategy.parameters, self._put(inputs))))

    def _put(self, tensor: torch.Tensor) -> jax.Array:
        return jax.device_put(tensor.numpy(), self.strategy.found.device)

    def _step(self, batch: Batch, number: int, requests: Requests) -> tuple[float, float, tuple[float, ...]]:
        strategy, at = self.strategy, self.stage.at
        at(number, WAITING)
        micro = next(batch.micros)
        at(number, BACKWARD)
        given = self._put(micro.inputs), self._put(micro.labels), self._put(micro.weights)
        found, parts, norms = self._gradient(strategy.parameters, *given, np.float32(batch.divisor))
        value = float(found)
        at(number, EXCHANGE)
        asked = requests()
        at(number, UPDATE)
        if not math.isfinite(value):
            raise self.diverged(f"the loss is {value}")
        gradient_norm = math.hypot(*np.asarray(norms).tolist())
        if not gradient_norm <= LARGEST_NORM:
            raise self.diverged(f"the norm of the gradient is {gradient_norm}")
        clips = 0 < self.options.clip_norm < gradient_norm
        numbers = jax_mlp.numbers_of_step(number, self.rate(number), self.options.weight_decay)
        numbers["clip"] = self.options.clip_norm / gradient_norm if clips else 1.0
        single = {name: np.float32(value) for name, value in numbers.items()}
        strategy.parameters, self._means, self._squares = self._adamw(
            strategy.parameters, self._means, self._squares, parts, single
        )
        return value, gradient_norm, asked
