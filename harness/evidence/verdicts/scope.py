"""The scope of a claim: which kind of device, how many of them, and how they are used."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from harness.evidence.files.run_files import Intent
from harness.host.facts import GpuFacts
from harness.matrix.strategies import Strategy

SIMULATED = "simulated-"
COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}


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


@dataclass(frozen=True)
class ScopeParts:
    """The parts of a scope: the device, how many of them, and their strategy."""

    device: str
    devices: int
    strategy: str
    simulated: bool

    @property
    def count(self) -> str:
        """Return how many devices, in words."""
        return COUNTS.get(self.devices, str(self.devices))

    @property
    def in_words(self) -> str:
        """Return it in words: `two GPUs (gfx1100) with ddp`."""
        used = "" if self.strategy == "single" else f" with {self.strategy}"
        if self.device == "cpu":
            return f"the CPU{used}{f' in {self.devices} processes' if used else ''}"
        kind = "simulated GPU" if self.simulated else "GPU"
        return f"{self.count} {kind}{'s' if self.devices > 1 else ''} ({self.device}){used}"


def parts_of(scope: str) -> ScopeParts:
    """Return what a scope consists of."""
    strategies = "|".join(map(re.escape, get_args(Strategy)))
    device, simulated = scope.removeprefix(SIMULATED), is_simulated_scope(scope)
    several = re.fullmatch(rf"(.+)-({strategies})-(\d+)", device)
    if several is None:
        return ScopeParts(device, 1, "single", simulated)
    return ScopeParts(several[1], int(several[3]), several[2], simulated)


def is_of_strategy(scope: str, strategy: Strategy) -> bool:
    """Return whether what a scope claims is about devices used in that way."""
    used = next((name for name in get_args(Strategy) if f"-{name}-" in scope), "single")
    return used == strategy
