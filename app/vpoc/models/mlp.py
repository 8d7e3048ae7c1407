"""The multilayer perceptron."""

from collections.abc import Sequence

import torch
from torch import nn


def mlp(inputs: int, hidden_layers: Sequence[int]) -> nn.Sequential:
    """A ReLU network from [batch, inputs] to one logit per row, [batch, 1]."""
    layers: list[nn.Module] = []
    width = inputs
    for size in hidden_layers:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, 1))


def parameter_count(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())


def fresh_mlp(inputs: int, hidden_layers: Sequence[int], seed: int) -> nn.Sequential:
    """A network on the CPU whose weights depend on `seed` alone, so that every device starts from the same."""
    torch.manual_seed(seed)
    return mlp(inputs, hidden_layers)
