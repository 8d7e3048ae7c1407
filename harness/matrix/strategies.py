"""Strategies, which say how the app uses devices, and the models that the app trains."""

from typing import Literal

ModelKind = Literal["mlp", "attention", "attention-small"]
Strategy = Literal["single", "dp", "ddp", "averaging", "fsdp", "model-parallel"]
# The other strategies for several devices drive all devices from one process.
RANK_PER_DEVICE = frozenset[Strategy]({"ddp", "averaging", "fsdp"})
OVER_A_BACKEND = frozenset[Strategy]({"ddp", "fsdp"})
