"""The scope of a claim: which kind of device, how many of them, and how they are used."""

from collections.abc import Iterable
from typing import get_args

from harness.evidence.run_files import Intent
from harness.host.facts import GpuFacts
from harness.matrix.strategies import Strategy

SIMULATED = "simulated-"


def scope_of(intent: Intent) -> str:
    """Return what a run shows something about."""
    strategy = intent.options.get("strategy", "single")
    devices = intent.options.get("devices", len(intent.gpus))
    gpus = (gpu for gpu in intent.host.gpus if gpu.index in intent.gpus)
    return scope(intent.device, gpus, strategy, devices, simulated=intent.host.simulated)


def scope(device: str, gpus: Iterable[GpuFacts], strategy: str, devices: int, *, simulated: bool = False) -> str:
    """Return `cpu`, `gfx1100` or `gfx1100-ddp-2`: the device, then strategy and count where there are several devices.

    A GPU that the driver does not tell of is a `gpu`: an interpreter of the user's may find other vendors' ones.
    On a simulated host it is `simulated-gfx1100`.
    """
    if device != "cpu":
        device = "-".join(sorted({gpu.gfx for gpu in gpus})) or "gpu"
    used = device if strategy == "single" else f"{device}-{strategy}-{devices}"
    return f"{SIMULATED}{used}" if simulated else used


def is_simulated_scope(scope: str) -> bool:
    """Return whether a scope is about a simulated host, and so about no real one."""
    return scope.startswith(SIMULATED)


def is_of_strategy(scope: str, strategy: Strategy) -> bool:
    """Return whether what a scope claims is about devices used in that way."""
    used = next((name for name in get_args(Strategy) if f"-{name}-" in scope), "single")
    return used == strategy
