"""The strategy for one device, and the interface of all strategies."""

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
    """One process and one device. The other strategies override what differs.

    `rank`, `world`: the number of this process, and the number of processes that train together.
    `devices`: the devices of this process; data goes to the first.
    `model`: the network as it was built, whose weights are saved.
    `forward`: the module that is called instead of `model`.
    """

    def __init__(self, model: Network, devices: Sequence[torch.device], rank: int = 0, world: int = 1) -> None:
        self.rank, self.world, self.devices = rank, world, list(devices)
        self.model = self.place(model)
        self.forward: nn.Module = self.wrap(self.model)
        self._parameters = list(self.model.parameters())

    def place(self, model: Network) -> Network:
        """Move the model to its device."""
        return model.to(self.devices[0])

    def wrap(self, model: Network) -> nn.Module:
        """Return the module that computes logits."""
        return model

    def settle(self, inputs: torch.Tensor) -> None:
        """Make one pass with `inputs` and discard its gradients, for wrappers that adapt to their first pass."""

    @property
    def loss_factor(self) -> float:
        """The factor of the loss that makes the final gradients sums over all ranks."""
        return 1.0

    def exchange(self, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002 - for those who exchange
        """Return the context of a forward and backward pass.

        Gradients are exchanged in the `last` pass, or after it.
        """
        return nullcontext()

    def synchronise(self, numbers: Sequence[float]) -> list[float]:
        """Sum gradients over all ranks after the last micro-batch; return `numbers`, summed in the same way."""
        return list(numbers)

    def gradient_norm(self) -> float:
        """Return the norm of the whole gradient, infinite if its square exceeds float32; waits for the device."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # In double precision the clipping does not depend on the order of the sum, however the gradient is spread over
        # ranks.
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
        # On a GPU, wait once for all norms, not once for each.
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
        """Flip a bit of this rank's next exchange (a fault).

        Return False if the other ranks would not notice which rank.
        """
        return False

    def smallest(self, number: int) -> int:
        """Return the smallest `number` of all ranks."""
        return number

    def gathered(self, value: str) -> list[str]:
        """Return the `value` of every rank."""
        return [value]

    def holding(self) -> list[torch.device]:
        """Return the devices of this rank that hold weights."""
        return list(dict.fromkeys(parameter.device for parameter in self.model.parameters()))

    def described(self) -> list[dict[str, Any]]:
        """Return the facts of these devices, in the form of the result."""
        return [describe(device, self.rank) for device in self.holding()]

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the full tensor of a parameter or of its optimizer state, on the CPU; all ranks must call it."""
        # Copy, because saving a part of a larger tensor would save all of it.
        return tensor.detach().to("cpu", copy=True).contiguous()

    def part(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the part of `tensor` that this rank holds, on the device of the parameter `like`; undoes `whole`."""
        return tensor.to(like.device)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all weights by name, on the CPU; all ranks must call it."""
        return {name: self.whole(tensor) for name, tensor in self.model.state_dict().items()}

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Set the weights to those that `weights` returned."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(self.part(weights[name], tensor))

    def close(self) -> None:
        """End the communication with other ranks."""
