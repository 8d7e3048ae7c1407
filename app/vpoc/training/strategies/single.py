"""One device, and what all strategies have in common."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from vpoc.device import describe
from vpoc.models.by_name import Network

LARGEST_NORM = math.sqrt(torch.finfo(torch.float32).max)


class Single:
    """One process and one device. The others override what differs.

    `rank`, `world`: this process among those that train together. `devices`: those of this process; data goes to the
    first. `model`: the network as it was built, whose weights are saved; `forward`: what is called in its place.
    """

    def __init__(self, model: Network, devices: Sequence[torch.device], rank: int = 0, world: int = 1) -> None:
        self.rank, self.world, self.devices = rank, world, list(devices)
        self.model = self.place(model)
        self.forward: nn.Module = self.wrap(self.model)
        self._parameters = list(self.model.parameters())

    def place(self, model: Network) -> Network:
        """The model on its device."""
        return model.to(self.devices[0])

    def wrap(self, model: Network) -> nn.Module:
        """Return what is called to compute logits."""
        return model

    def settle(self, inputs: torch.Tensor) -> None:
        """Make one pass with `inputs` and discard its gradients, for wrappers that adapt to their first pass."""

    @property
    def loss_factor(self) -> float:
        """The factor of the loss that makes gradients sums over all ranks in the end."""
        return 1.0

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who exchange
        """Return the context of a forward and backward pass; gradients are exchanged with the `last`, or after it."""
        return nullcontext()

    def synchronise(self, numbers: Sequence[float]) -> list[float]:
        """Sum gradients over all ranks, after the last micro-batch, and return `numbers` summed likewise."""
        return list(numbers)

    def gradient_norm(self) -> float:
        """Norm of the whole gradient, infinite where its square is no float32; waits for the device."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # In double the order of the sum does not show in what a gradient is clipped by, on whatever ranks it is spread.
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        # On a GPU one wait for all of them, not one for each.
        on_cpu = self.devices[0].type == "cpu"
        values = map(float, norms) if on_cpu else torch.stack([n.to(self.devices[0]) for n in norms]).tolist()
        norm = math.hypot(*values)
        # Adam squares gradients in float32.
        return math.inf if norm > LARGEST_NORM else norm

    def scale_gradient(self, factor: float) -> None:
        """Multiply the gradient by `factor`."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def flip_next_exchange(self) -> bool:
        """Flip a bit of what this rank passes on next (a fault); return False where the others would not see which."""
        return False

    def smallest(self, number: int) -> int:
        """Return the smallest `number` of all ranks."""
        return number

    def gathered(self, value: str) -> list[str]:
        """Return the `value` of every rank."""
        return [value]

    def holding(self) -> list[torch.device]:
        """The devices of this rank that hold weights."""
        return list(dict.fromkeys(parameter.device for parameter in self.model.parameters()))

    def described(self) -> list[dict[str, Any]]:
        """Those devices, as results tell of them."""
        return [describe(device, self.rank) for device in self.holding()]

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """The full tensor, on the CPU, of a parameter or of what the optimizer keeps for it; all ranks must ask."""
        # A copy: what is saved of a part of a larger tensor would be all of it.
        return tensor.detach().to("cpu", copy=True).contiguous()

    def part(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of `whole`: `tensor` as this rank holds it, on the device of the parameter `like`."""
        return tensor.to(like.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """All weights by name, on the CPU; all ranks must ask."""
        return {name: self.whole(tensor) for name, tensor in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Take `weights`, as `weights` gives them."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(self.part(weights[name], tensor))

    def close(self) -> None:
        """End what was begun with other ranks."""
