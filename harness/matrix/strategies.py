"""How the app uses devices, and which models it trains."""

from typing import Literal

ModelKind = Literal["mlp", "attention", "attention-small"]
Strategy = Literal["single", "dp", "ddp", "averaging", "fsdp", "model-parallel"]
# The others of several devices drive them all from one process.
RANK_PER_DEVICE = frozenset[Strategy]({"ddp", "averaging", "fsdp"})
OVER_A_BACKEND = frozenset[Strategy]({"ddp", "fsdp"})
