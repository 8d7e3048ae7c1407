"""What a claim is about: which kind of device, how many of them, and how they are used."""

from collections.abc import Iterable
from typing import get_args

from harness.evidence.run_files import Intent
from harness.host.facts import GpuFacts
from harness.matrix.cells import Strategy


def scope_of(intent: Intent) -> str:
    """What a run shows something about."""
    strategy = intent.options.get("strategy", "single")
    devices = intent.options.get("devices", len(intent.gpus))
    return scope(intent.device, (gpu for gpu in intent.host.gpus if gpu.index in intent.gpus), strategy, devices)


def scope(device: str, gpus: Iterable[GpuFacts], strategy: str, devices: int) -> str:
    """`cpu`, `gfx1100`, `gfx1100-ddp-2`: the device, then strategy and number of devices where there are several.

    A GPU that the driver does not tell of is a `gpu`: an interpreter of the user's may find other vendors' ones.
    """
    if device != "cpu":
        device = "-".join(sorted({gpu.gfx for gpu in gpus})) or "gpu"
    return device if strategy == "single" else f"{device}-{strategy}-{devices}"


def is_of_strategy(scope: str, strategy: Strategy) -> bool:
    """Whether what a scope claims is about devices used in that way."""
    used = next((name for name in get_args(Strategy) if f"-{name}-" in scope), "single")
    return used == strategy
