"""The multilayer perceptron."""

from collections.abc import Sequence

from torch import nn


def mlp_layers(inputs: int, hidden_layers: Sequence[int]) -> list[nn.Module]:
    """Return the layers of a ReLU network from [batch, inputs] to one logit per row, [batch, 1]."""
    layers: list[nn.Module] = []
    width = inputs
    for size in hidden_layers:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return [*layers, nn.Linear(width, 1)]
