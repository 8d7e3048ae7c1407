"""Decides whether runs of one GPU each may go on at the same time on a host. Pure."""

from collections import Counter
from collections.abc import Collection

from harness.base.wording import listed
from harness.doctor.machine import HostGpu, Machine

# Memory of a run, in bytes: a container's shared memory, and half as much again for loader workers that import torch.
MEMORY_OF_A_RUN = 12 << 30


def why_not_side_by_side(machine: Machine, gpus: Collection[int]) -> str | None:
    """Return why runs on these GPUs, one on each, should not go on at the same time; None if they may.

    A reset of one GPU also resets GPUs behind the same root port, a hang freezes the screen too, and a host that swaps
    looks like one that hangs.
    """
    used = [gpu for gpu in machine.gpus if gpu.facts.index in gpus]
    if len(used) < 2:  # noqa: PLR2004
        return "there is one GPU to run on"
    ports = Counter(_port(gpu) for gpu in used)
    if None in ports:
        return "it is not known which root ports the GPUs are behind"
    if shared := next((port for port, count in ports.items() if count > 1), None):
        return f"{listed(_name(gpu) for gpu in used if _port(gpu) == shared)} are behind one root port ({shared})"
    if screened := [gpu for gpu in used if gpu.facts.displays]:
        return f"a screen is connected to {listed(map(_name, screened))}"
    needed = MEMORY_OF_A_RUN * len(used)
    if machine.host.memory_bytes < needed:
        return (
            f"the host has {machine.host.memory_bytes >> 30} GiB of memory, {len(used)} runs are given {needed >> 30}"
        )
    return None


def _port(gpu: HostGpu) -> str | None:
    return gpu.card.root_port if gpu.card else None


def _name(gpu: HostGpu) -> str:
    return f"GPU {gpu.facts.index}"
