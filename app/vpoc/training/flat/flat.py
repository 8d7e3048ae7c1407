"""Training steps of the multilayer perceptron, without autograd.

In networks this small, calling torch takes nearly all of a step's time. Here a step is about thirty calls on tensors
that exist already: no graph, no allocation, no wait for the device. They are the same calls that autograd and
torch.optim.AdamW make, on the same shapes in the same order, so that the weights come out the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from vpoc.training.flat.flat_adam import ALIGNMENT, FlatAdam
from vpoc.training.schedule import Rate
from vpoc.training.strategies.single import LARGEST_NORM

PICKED_ROWS = 16_384
"""Rows that `blocks` picks at a time: many small batches with one call, but few enough to stay in the cache."""

_relu_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True)
class _Layer:
    """A linear layer with ReLU: weight [out, in] and bias [out] with their gradients; `..._t` is a transposed view.

    `outputs` [batch, out] and their gradient are buffers for one batch size.
    """

    weight: torch.Tensor
    weight_t: torch.Tensor
    bias: torch.Tensor
    weight_gradient: torch.Tensor
    bias_gradient: torch.Tensor
    outputs: torch.Tensor
    gradient: torch.Tensor
    gradient_t: torch.Tensor


class FlatMlp:
    """Trains `model`: linear layers with ReLU between them; the last has one output, the logit.

    After construction the parameters of `model` and their gradients are views of one vector each, so that `model` is
    always current; it must stay on its device. The loss of a batch is sum(weight * binary log-loss) / divisor.

    On a CPU the weights are bitwise identical to those of autograd and torch.optim.AdamW with as many threads, except
    when a layer of one unit gets a batch of one sample, whose product autograd computes in the other order. In that
    case, and on GPUs, they agree within the rounding of float32. Losses and norm are summed in another order, with
    relative differences of 1e-6.

    `batch_size`: the most samples of a step.
    `rate`, `weight_decay`: as in FlatAdam.
    `clip_norm`: the norm to which a larger gradient is scaled down; 0: no clipping.
    `gradient_norm`: of the last step, before clipping; a scalar on the device, which may not be computed yet.

    ValueError when `model` has other layers or is not float32.
    """

    def __init__(
        self, model: nn.Sequential, rate: Rate, batch_size: int, *, weight_decay: float = 0.0, clip_norm: float = 0.0
    ) -> None:
        self._linear = _linear_layers(model)
        self.batch_size = batch_size
        self.adam = FlatAdam(model.parameters(), rate, weight_decay)
        self.clip_norm = clip_norm
        self.gradient_norm = self._new()
        widths = [layer.out_features for layer in self._linear]
        self._rows = self._new(batch_size, self._linear[0].in_features)
        self._room = [(self._new(batch_size, width), self._new(batch_size, width)) for width in widths]
        self._prepared: dict[int, list[_Layer]] = {}

    def steps(
        self, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor, divisors: Sequence[float]
    ) -> torch.Tensor:
        """Make steps with consecutive batches of `batch_size` rows (the last may be shorter).

        The loss before each, [batches].

        `inputs` [rows, features], `labels` and `weights` [rows] are on the device; `divisors` [batches].
        """
        logits, losses = torch.empty_like(labels), self._new(len(divisors))
        with torch.inference_mode():
            factors = self._factors(weights, divisors)
            columns = (labels[:, None], factors[:, None], logits[:, None])
            parts = (torch.split(tensor, self.batch_size) for tensor in (inputs, *columns))
            lined_up = _lined_up(inputs, self.batch_size)
            for number, (rows, *others) in enumerate(zip(*parts, strict=True), start=1):
                self._differentiate(rows if lined_up else self._line_up(rows), *others)
                if number == len(losses):
                    self.gradient_norm = torch.linalg.vector_norm(self.adam.gradient)
                self._clip()
                self.adam.step()
            self._losses(logits, labels, factors, losses)
        return losses

    def _differentiate(
        self, inputs: torch.Tensor, labels: torch.Tensor, factors: torch.Tensor, logits: torch.Tensor
    ) -> None:
        """Compute the logits and the gradient of a batch; all but `inputs` are [batch, 1].

        `factors`: the factor of each log-loss.
        """
        *hidden, last = self._prepared.get(len(inputs)) or self._prepare(len(inputs))
        values = inputs
        for layer in hidden:
            values = torch.addmm(layer.bias, values, layer.weight_t, out=layer.outputs).relu_()
        torch.addmm(last.bias, values, last.weight_t, out=logits)
        torch.sigmoid(logits, out=last.gradient).sub_(labels).mul_(factors)
        above = last
        for layer in reversed(hidden):
            torch.mm(above.gradient_t, layer.outputs, out=above.weight_gradient)
            torch.sum(above.gradient, 0, out=above.bias_gradient)
            torch.mm(above.gradient, above.weight, out=layer.gradient)
            _relu_backward(layer.gradient, layer.outputs, 0, grad_input=layer.gradient)
            above = layer
        torch.mm(above.gradient_t, inputs, out=above.weight_gradient)
        torch.sum(above.gradient, 0, out=above.bias_gradient)

    def _prepare(self, size: int) -> list[_Layer]:
        """Return the layers with buffers for `size` samples."""
        layers = []
        for linear, (outputs, gradient) in zip(self._linear, self._room, strict=True):
            weight, bias = linear.weight, linear.bias
            assert weight.grad is not None
            assert bias.grad is not None
            room = outputs[:size], gradient[:size], gradient[:size].t()
            layers.append(_Layer(weight.data, weight.data.t(), bias.data, weight.grad, bias.grad, *room))
        return self._prepared.setdefault(size, layers)

    def _line_up(self, inputs: torch.Tensor) -> torch.Tensor:
        """Copy the rows to memory that begins on a cache line, because alignment affects how products are rounded.

        Without this, resuming in the middle of an epoch would give other weights.
        """
        return self._rows[: len(inputs)].copy_(inputs)

    def _factors(self, weights: torch.Tensor, divisors: Sequence[float]) -> torch.Tensor:
        """Return the weight of each row over the divisor of its batch, [rows].

        It is rounded like the derivative of loss / divisor.
        """
        inverse = np.float32(1) / np.asarray(divisors, dtype=np.float32)
        each = np.repeat(inverse, self.batch_size)[: len(weights)]
        return torch.from_numpy(each).to(weights.device, non_blocking=True).mul_(weights)

    def _losses(self, logits: torch.Tensor, labels: torch.Tensor, factors: torch.Tensor, losses: torch.Tensor) -> None:
        """Write the weighted log-loss of each batch into `losses` [batches]."""
        each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mul_(factors)
        whole = len(each) // self.batch_size
        rows = whole * self.batch_size
        torch.sum(each[:rows].view(whole, self.batch_size), 1, out=losses[:whole])
        if rows < len(each):
            torch.sum(each[rows:], 0, out=losses[whole])

    def _clip(self) -> None:
        """Scale a gradient with a norm above `clip_norm` down to that norm, as the plain loop does."""
        gradient = self.adam.gradient
        if not self.clip_norm:
            return
        if gradient.is_cuda:
            # Computed on the device, so as not to wait for it.
            gradient.mul_((self.clip_norm / torch.linalg.vector_norm(gradient, dtype=torch.float64)).clamp_(max=1.0))
            return
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float64).item()
        if self.clip_norm < norm <= LARGEST_NORM:
            gradient.mul_(self.clip_norm / norm)

    def _new(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=self._linear[0].weight.device)


def blocks(
    tensors: Sequence[torch.Tensor], order: torch.Tensor, batch_size: int, ends: torch.Tensor | None = None
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the samples `order` of `tensors`, several whole batches at a time; each part overwrites the one before.

    `ends`: the row of each sample in the first tensor, if that has other rows than the rest. Picking many rows with one
    call costs a fraction of picking them batch by batch, or of reordering all rows in advance.
    """
    rows = max(PICKED_ROWS // batch_size, 1) * batch_size
    room = [tensor.new_empty((min(rows, len(order)), *tensor.shape[1:])) for tensor in tensors]
    for part in torch.split(order, rows):
        places = [part if ends is None else ends[part], *[part] * (len(tensors) - 1)]
        pairs = zip(tensors, places, room, strict=True)
        yield tuple(torch.index_select(tensor, 0, at, out=place[: len(part)]) for tensor, at, place in pairs)


def _lined_up(inputs: torch.Tensor, batch_size: int) -> bool:
    """Return whether each batch of the rows begins on a cache line."""
    size = ALIGNMENT * inputs.element_size()
    starts = inputs.data_ptr(), batch_size * inputs.stride(0) * inputs.element_size()
    return all(start % size == 0 for start in starts) and inputs.is_contiguous()


def _linear_layers(model: nn.Sequential) -> list[nn.Linear]:
    linear = [layer for layer in model if isinstance(layer, nn.Linear) and layer.bias is not None]
    kinds = [nn.ReLU if number % 2 else nn.Linear for number in range(len(model))]
    alternate = all(isinstance(layer, kind) for layer, kind in zip(model, kinds, strict=True))
    if not alternate or len(model) != 2 * len(linear) - 1 or linear[-1].out_features != 1:
        raise ValueError("only linear layers with ReLU between them, and one logit, can be trained by hand")
    return linear
