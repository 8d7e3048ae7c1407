"""The networks by name. Each is a sequence of layers, so that it can be split, sharded and recomputed by layer."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from vpoc.errors import UserError
from vpoc.models.attention import WINDOW, EncoderLayer, attention_layers
from vpoc.models.mlp import mlp_layers


@dataclass(frozen=True)
class AttentionSize:
    """Width of a row's vector, number of heads, and units of the ReLU networks."""

    embedding: int
    heads: int
    hidden: int


ATTENTION = {"attention": AttentionSize(256, 8, 512), "attention-small": AttentionSize(128, 4, 256)}
"""About 2.9 and 0.7 million parameters: the user's backward pass hung with the first, and did not with the second."""


class Network(nn.Sequential):
    """A sequence of layers. `recompute`: keep no activations for the backward pass, but compute them again there."""

    recompute = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one logit per sample, [batch, 1]."""
        value = inputs
        for layer in self:
            again = self.recompute and self.training
            value = checkpoint(layer, value, use_reentrant=False) if again else layer(value)
        return value

    def answer(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what `forward` does, to rounding, with less work.

        The last encoder layer computes only the row that the logit is made from.
        """
        *encoder, head = self
        if not encoder or not isinstance(encoder[-1], EncoderLayer):
            return self.forward(inputs)
        value = inputs
        for layer in encoder[:-1]:
            value = layer(value)
        logit: torch.Tensor = head(encoder[-1].last_row(value))
        return logit


def window_of(kind: str) -> int:
    """Return the number of rows in a sample of the model `kind`; 1 means a row, not a window."""
    return WINDOW if kind in ATTENTION else 1


def input_shape(kind: str, inputs: int) -> tuple[int, ...]:
    """Return the shape of one sample."""
    return (WINDOW, inputs) if kind in ATTENTION else (inputs,)


def network(kind: str, inputs: int, hidden_layers: Sequence[int]) -> Network:
    """Return the network `kind` on the CPU; `hidden_layers` is for mlp."""
    if kind in ATTENTION:
        size = ATTENTION[kind]
        return Network(*attention_layers(inputs, size.embedding, size.heads, size.hidden))
    return Network(*mlp_layers(inputs, hidden_layers))


def fresh_network(kind: str, inputs: int, hidden_layers: Sequence[int], seed: int) -> Network:
    """Return a network on the CPU whose weights depend only on `seed`, so that all devices start from the same ones."""
    torch.manual_seed(seed)
    return network(kind, inputs, hidden_layers)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def choose_sdpa(backend: str, device: torch.device, dtype: torch.dtype, kinds: Sequence[str]) -> None:
    """Have attention computed by `backend` only, in the whole process; auto: torch's choice.

    UserError if the device has no such kernel for the models `kinds` in type `dtype`.
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
    if backend != "auto":
        for size in (ATTENTION[kind] for kind in kinds if kind in ATTENTION):
            _require_kernel(backend, size, device, dtype)


def _require_kernel(backend: str, size: AttentionSize, device: torch.device, dtype: torch.dtype) -> None:
    """Raise UserError unless the enabled kernels can compute attention of `size`, forward and backward."""
    shape = (1, size.heads, WINDOW, size.embedding // size.heads)
    query, key, value = (torch.zeros(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            functional.scaled_dot_product_attention(query, key, value).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if not any(words in str(error) for words in ("No available kernel", "No viable backend")):
                raise
            # Torch gives the reason in warnings, and only "No available kernel" in the error.
            said = [str(reason.message).partition(" (Triggered internally")[0] for reason in reasons]
            aside = ("not used because:", "has been runtime disabled.")
            why = next((line for line in said if not line.strip().endswith(aside)), str(error))
            raise UserError(
                f"--sdpa {backend}: torch {torch.__version__} has no such kernel for {str(dtype).rpartition('.')[2]} "
                f"on this device ({why.strip().splitlines()[0]}); choose auto or math"
            ) from error
