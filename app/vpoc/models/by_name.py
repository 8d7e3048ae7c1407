"""The networks by name. Each is a sequence of layers, so that it can be split, sharded and recomputed by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vpoc.errors import UserError
from vpoc.models.attention import WINDOW, attention_layers
from vpoc.models.mlp import mlp_layers

SDPA = ("auto", "math", "flash", "efficient")


@dataclass(frozen=True)
class AttentionSize:
    """Width of a row's vector, heads, and units of the ReLU networks."""

    embedding: int
    heads: int
    hidden: int


ATTENTION = {"attention": AttentionSize(256, 8, 512), "attention-small": AttentionSize(128, 4, 256)}
"""About 2.9 and 0.7 million parameters: with the first the user's backward pass hung, with the second it did not."""
MODELS = ("mlp", *ATTENTION)


class Network(nn.Sequential):
    """Layers one after another. `recompute`: keep no activations for the backward pass, compute them again there."""

    recompute = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One logit per sample, [batch, 1]."""
        value = inputs
        for layer in self:
            again = self.recompute and self.training
            value = checkpoint(layer, value, use_reentrant=False) if again else layer(value)
        return value


def window_of(kind: str) -> int:
    """How many rows a sample of the model `kind` has; 1: a row, not a window."""
    return WINDOW if kind in ATTENTION else 1


def input_shape(kind: str, inputs: int) -> tuple[int, ...]:
    """Shape of one sample."""
    return (WINDOW, inputs) if kind in ATTENTION else (inputs,)


def network(kind: str, inputs: int, hidden_layers: Sequence[int]) -> Network:
    """The network `kind` on the CPU; `hidden_layers` is for mlp."""
    if kind in ATTENTION:
        size = ATTENTION[kind]
        return Network(*attention_layers(inputs, size.embedding, size.heads, size.hidden))
    return Network(*mlp_layers(inputs, hidden_layers))


def fresh_network(kind: str, inputs: int, hidden_layers: Sequence[int], seed: int) -> Network:
    """A network on the CPU whose weights depend on `seed` alone, so that every device starts from the same."""
    torch.manual_seed(seed)
    return network(kind, inputs, hidden_layers)


def parameter_count(model: nn.Module) -> int:
    """How many numbers training adjusts."""
    return sum(parameter.numel() for parameter in model.parameters())


def choose_sdpa(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """Let attention be computed by `backend` alone, in the whole process; auto: torch's choice.

    UserError where the device has no such kernel for numbers of `dtype`.
    """
    if backend == "flash" and device.type == "cuda" and dtype == torch.float32:
        raise UserError("--sdpa flash: a GPU has no such kernel for float32; give --use-mixed-precision as well")
    if backend == "efficient" and device.type == "cpu":
        raise UserError("--sdpa efficient: there is no such kernel on a CPU; choose auto, math or flash")
    switches = torch.backends.cuda
    switches.enable_math_sdp(backend in ("auto", "math"))
    switches.enable_flash_sdp(backend in ("auto", "flash"))
    switches.enable_mem_efficient_sdp(backend in ("auto", "efficient"))
    if hasattr(switches, "enable_cudnn_sdp"):
        switches.enable_cudnn_sdp(backend == "auto")
