"""AdamW on all parameters at once: values, gradients and moments are in one vector each."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from vpoc.training.schedule import Rate

ALIGNMENT = 16
"""Alignment in numbers: each parameter begins on a cache line, like a separate tensor, so that products round alike."""
# The defaults of torch.optim.AdamW, not read from it: creating one imports torch's compiler, which takes too long.
BETAS = 0.9, 0.999
ADAM_EPSILON = 1e-8


class FlatAdam:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) on `parameters`, all float32 and on one device.

    `rate`: the learning rate of a step; `weight_decay` is multiplied by it. The other settings are torch's defaults.

    After construction each parameter is a view of the vector `values` and its `grad` a view of the vector `gradient`;
    `gradients` are these latter views. The parameters keep their values and their gradients are 0. ValueError for
    parameters that cannot share a vector.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: Rate, weight_decay: float = 0.0) -> None:
        self._parameters = list(parameters)
        if len({(parameter.dtype, parameter.device) for parameter in self._parameters}) != 1:
            raise ValueError("parameters must be of one type and on one device")
        if self._parameters[0].dtype != torch.float32:
            raise ValueError(f"parameters must be float32, not {self._parameters[0].dtype}")
        self._rate, self._weight_decay = rate, weight_decay
        sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in self._parameters]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes))]
        self.values, self.gradient, self._mean, self._square, self._root = (
            torch.zeros(sum(sizes), device=self._parameters[0].device) for _ in range(5)
        )
        # Constants that are tensors already save torch a conversion per call.
        self._decay, self._epsilon = torch.tensor(BETAS[1]), torch.tensor(ADAM_EPSILON)
        self._correction = torch.tensor(1.0)
        self.steps = 0
        with torch.no_grad():
            self.gradients = self._views(self.gradient)
            pairs = zip(self._parameters, self._views(self.values), self.gradients, strict=True)
            for parameter, view, gradient in pairs:
                view.copy_(parameter)
                parameter.data = view
                parameter.grad = gradient

    def step(self) -> None:
        """Update the parameters from `gradient`: the same operations as torch.optim.AdamW, in the same order."""
        self.steps += 1
        beta1, beta2 = BETAS
        rate = self._rate(self.steps)
        self.values.mul_(1 - rate * self._weight_decay)
        self._mean.lerp_(self.gradient, 1 - beta1)
        self._square.mul_(self._decay).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        torch.sqrt(self._square, out=self._root)
        self._root.div_(self._correction.fill_((1 - beta2**self.steps) ** 0.5)).add_(self._epsilon)
        self.values.addcdiv_(self._mean, self._root, value=-rate / (1 - beta1**self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return the `state` of torch.optim.AdamW.state_dict, with copies of the moments."""
        means, squares = self._views(self._mean), self._views(self._square)
        state = {
            number: {"step": torch.tensor(float(self.steps)), "exp_avg": mean.clone(), "exp_avg_sq": square.clone()}
            for number, (mean, square) in enumerate(zip(means, squares, strict=True))
        }
        return {"state": state if self.steps else {}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the state of an Adam with the same parameters; the learning rate stays that of this one."""
        state = state_dict["state"]
        for vector, name in ((self._mean, "exp_avg"), (self._square, "exp_avg_sq")):
            vector.zero_()
            for number, view in enumerate(self._views(vector) if state else []):
                view.copy_(state[number][name])
        self.steps = int(state[0]["step"]) if state else 0

    def _views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        places = zip(self._starts, self._parameters, strict=True)
        return [vector[start : start + like.numel()].view(like.shape) for start, like in places]
