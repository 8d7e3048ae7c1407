"""The multilayer perceptron in JAX: logits, loss and gradient, and AdamW, in float32 as torch computes them.

Parameters are a tuple as in torch's `mlp_layers`: weight [out, in] and bias [out] of each layer in turn.
"""

from typing import Any

import jax
import jax.numpy as jnp

Arrays = tuple[jax.Array, ...]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Torch's defaults."""


def logits(parameters: Arrays, inputs: jax.Array) -> jax.Array:
    """Return one logit per sample, [batch], of `inputs` [batch, features]."""
    rows = inputs
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        rows = jax.nn.relu(rows @ weight.T + bias)
    return (rows @ parameters[-2].T + parameters[-1])[:, 0]


def loss(parameters: Arrays, inputs: jax.Array, labels: jax.Array, weights: jax.Array, divisor: Any) -> jax.Array:
    """Return the sum of weight times log-loss over `divisor`."""
    found = logits(parameters, inputs)
    # The same formula as torch's binary_cross_entropy_with_logits, which overflows for no logit.
    each = jnp.maximum(found, 0) - found * labels + jnp.log1p(jnp.exp(-jnp.abs(found)))
    return (each * weights).sum() / divisor


def gradient(
    parameters: Arrays, inputs: jax.Array, labels: jax.Array, weights: jax.Array, divisor: Any
) -> tuple[jax.Array, Arrays, jax.Array]:
    """Return the loss, gradient, and the norm of each part of the gradient [parameters]."""
    value, parts = jax.value_and_grad(loss)(parameters, inputs, labels, weights, divisor)
    return value, parts, jnp.stack([jnp.sqrt((part * part).sum()) for part in parts])


def adamw(
    parameters: Arrays, means: Arrays, squares: Arrays, parts: Arrays, numbers: dict[str, Any]
) -> tuple[Arrays, Arrays, Arrays]:
    """Return the parameters and both moments after a step of AdamW (Loshchilov and Hutter 2019, algorithm 2).

    `numbers`: as `numbers_of_step` gives them, and `clip`, the factor of the gradient.
    """
    clipped = [part * numbers["clip"] for part in parts]
    means = tuple(m + (g - m) * (1 - BETA1) for m, g in zip(means, clipped, strict=True))
    squares = tuple(s * BETA2 + g * g * (1 - BETA2) for s, g in zip(squares, clipped, strict=True))
    moved = tuple(
        p * numbers["keep"] - numbers["size"] * (m / (jnp.sqrt(s) / numbers["root"] + EPSILON))
        for p, m, s in zip(parameters, means, squares, strict=True)
    )
    return moved, means, squares


def numbers_of_step(step: int, rate: float, weight_decay: float) -> dict[str, float]:
    """Return the numbers of AdamW's step that depend only on these arguments; in double, as in torch.

    `step` is counted from 1.
    """
    return {
        "keep": 1 - rate * weight_decay,
        "size": rate / (1 - BETA1**step),
        "root": (1 - BETA2**step) ** 0.5,
    }
