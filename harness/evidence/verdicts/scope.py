"""The scope of a claim: the kind of device, the number of devices, and the strategy."""

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
    """Return the scope of what a run shows."""
    strategy = intent.options.get("strategy", "single")
    devices = intent.options.get("devices", len(intent.gpus))
    gpus = (gpu for gpu in intent.host.gpus if gpu.index in intent.gpus)
    return scope(intent.device, gpus, strategy, devices, simulated=intent.host.simulated)


def scope(device: str, gpus: Iterable[GpuFacts], strategy: str, devices: int, *, simulated: bool = False) -> str:
    """Return `cpu`, `gfx1100` or `gfx1100-ddp-2`: the device, then strategy and count if there are several devices.

    A GPU that the driver does not list is a `gpu`: an interpreter of the user's may find GPUs of other vendors. On a
    simulated host the scope is `simulated-gfx1100`.
    """
    if device != "cpu":
        device = "-".join(sorted({gpu.gfx for gpu in gpus})) or "gpu"
    used = device if strategy == "single" else f"{device}-{strategy}-{devices}"
    return f"{SIMULATED}{used}" if simulated else used


def is_simulated_scope(scope: str) -> bool:
    """Return whether a scope is about a simulated host, and thus about no real one."""
    return scope.startswith(SIMULATED)


@dataclass(frozen=True)
class ScopeParts:
    """The parts of a scope: the device, the number of devices, and their strategy."""

    device: str
    devices: int
    strategy: str
    simulated: bool

    @property
    def count(self) -> str:
        """The number of devices, in words."""
        return COUNTS.get(self.devices, str(self.devices))

    @property
    def in_words(self) -> str:
        """The scope in words: `two GPUs (gfx1100) with ddp`."""
        used = "" if self.strategy == "single" else f" with {self.strategy}"
        if self.device == "cpu":
            return f"the CPU{used}{f' in {self.devices} processes' if used else ''}"
        kind = "simulated GPU" if self.simulated else "GPU"
        return f"{self.count} {kind}{'s' if self.devices > 1 else ''} ({self.device}){used}"


def parts_of(scope: str) -> ScopeParts:
    """Return the parts of a scope."""
    strategies = "|".join(map(re.escape, get_args(Strategy)))
    device, simulated = scope.removeprefix(SIMULATED), is_simulated_scope(scope)
    several = re.fullmatch(rf"(.+)-({strategies})-([0-9]{{1,6}})", device)
    if several is None:
        return ScopeParts(device, 1, "single", simulated)
    return ScopeParts(several[1], int(several[3]), several[2], simulated)


def is_of_strategy(scope: str, strategy: Strategy) -> bool:
    """Return whether a scope is about devices that are used with this strategy."""
    used = next((name for name in get_args(Strategy) if f"-{name}-" in scope), "single")
    return used == strategy
