"""One process that copies the model to every GPU for each batch: torch.nn.DataParallel, as in the user's notes."""

import torch
from torch import nn

from vpoc.models.by_name import Network
from vpoc.training.strategies.single import Single


class DataParallel(Single):
    """Splits each micro-batch over the devices in threads; gradients are collected on the first device."""

    def wrap(self, model: Network) -> nn.Module:
        """Return the model in nn.DataParallel."""
        return nn.DataParallel(model, device_ids=[device.index for device in self.devices])

    def holding(self) -> list[torch.device]:
        """Return all devices: each holds a copy during a batch."""
        return self.devices
