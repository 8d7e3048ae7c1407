"""One process that places the layers of the model on several devices, in order."""

import torch
from torch import nn

from vpoc.errors import UserError
from vpoc.models.by_name import Network, parameter_count
from vpoc.training.strategies.single import Single


class ModelParallel(Single):
    """Places about the same number of parameters on each device; a batch passes through the devices in turn."""

    def place(self, model: Network) -> Network:
        """Move each layer to its device."""
        numbers = stages(model, len(self.devices))
        if len(set(numbers)) < len(self.devices):
            raise UserError(
                f"--devices {len(self.devices)}: the model's layers fill only {len(set(numbers))} of them; give fewer, "
                "or larger layers"
            )
        self._devices_of = [self.devices[number] for number in numbers]
        for layer, device in zip(model, self._devices_of, strict=True):
            layer.to(device)
        return model

    def wrap(self, model: Network) -> nn.Module:
        """Return the model with copies between its devices: each layer first copies its input to its device."""
        for layer, device in zip(model, self._devices_of, strict=True):
            layer.register_forward_pre_hook(_fetch(device))
        return _ToFirst(model, self.devices[0])

    def holding(self) -> list[torch.device]:
        """Return one device for each part of the model, even if several parts share a CPU."""
        return self.devices


class _ToFirst(nn.Module):
    """Moves the logits to the device of the labels."""

    def __init__(self, model: Network, device: torch.device) -> None:
        super().__init__()
        self.model, self.device = model, device

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(inputs).to(self.device)
        return logits


def stages(model: Network, devices: int) -> list[int]:
    """Return the device number of each layer.

    It follows from the middle of the layer's parameters, so that devices get about the same number of them.
    """
    sizes = [parameter_count(layer) for layer in model]
    before, chosen = 0, []
    for size in sizes:
        chosen.append(min(devices - 1, int((before + size / 2) * devices / sum(sizes))))
        before += size
    return chosen


def _fetch(device: torch.device):  # type: ignore[no-untyped-def]
    def fetch(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(device) for tensor in inputs)

    return fetch
