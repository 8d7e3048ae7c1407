"""Reads from the driver which processes hold GPU memory, of this run or not. `root` may be a fake tree."""

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

from harness.base.sysfs import read_text
from harness.host.gpus.gpu_memory import kfd_memory

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Longest time for all descriptors, in seconds. A process may have a million of them, so the one with the most comes
# last.
MOST_SECONDS = 10.0
REGION = re.compile(r"drm-(resident|memory)-(vram\d*)")


@dataclass(frozen=True)
class Owner:
    """A process that holds `bytes` of the memory of `gpu`: for `kfd` the driver's id, for `fdinfo` the PCI address.

    `kfd` counts compute memory, `fdinfo` memory that was taken through a render node; other users' is only shown to
    root. The two must not be added up.
    """

    pid: int
    name: str | None
    bytes: int
    source: Literal["kfd", "fdinfo"]
    gpu: str
    of_this_run: bool


def memory_owners(run: Collection[int], root: Path) -> tuple[Owner, ...]:
    """Return the owners, those that hold most first. `run`: the pids of the run."""
    held = [*_kfd(root), *_fdinfo(root)]
    found = [
        Owner(pid, read_text(root / f"proc/{pid}/comm"), used, source, gpu, pid in run)
        for pid, source, gpu, used in held
        if used
    ]
    return tuple(sorted(found, key=lambda owner: (-owner.bytes, owner.pid)))


def _kfd(root: Path) -> Iterator[tuple[int, Literal["kfd", "fdinfo"], str, int]]:
    for pid, gpus in kfd_memory(root).items():
        for gpu, used in gpus.items():
            yield pid, "kfd", gpu, used


def _fdinfo(root: Path) -> Iterator[tuple[int, Literal["kfd", "fdinfo"], str, int]]:
    """Yield the owners from fdinfo, as in Documentation/gpu/drm-usage-stats.rst of the kernel.

    A client may have several descriptors, also in several processes.
    """
    clients: set[tuple[str, str]] = set()
    held: dict[tuple[int, str], int] = defaultdict(int)
    until = time.monotonic() + MOST_SECONDS
    pids = [int(folder.name) for folder in root.glob("proc/[0-9]*") if folder.name.isdigit()]
    for _, pid in sorted((sum(1 for _ in _descriptors(root, pid)), pid) for pid in pids):
        for facts in _drm_facts(_descriptors(root, pid), until):
            client = facts.get("drm-pdev", ""), facts.get("drm-client-id", "")
            if client not in clients:
                # Without an identifier, two descriptors of one client look like two clients.
                if client[1]:
                    clients.add(client)
                held[pid, client[0]] += _video_memory(facts)
    for (pid, card), used in held.items():
        yield pid, "fdinfo", card, used


def _descriptors(root: Path, pid: int) -> Iterator[str]:
    with suppress(OSError), os.scandir(root / f"proc/{pid}/fdinfo") as entries:
        yield from (entry.path for entry in entries)


def _drm_facts(files: Iterator[str], until: float) -> Iterator[dict[str, str]]:
    for file in takewhile(lambda _: time.monotonic() <= until, files):
        lines = (read_text(Path(file)) or "").splitlines()
        pairs = (line.partition(":") for line in lines if line.startswith("drm-"))
        if facts := {key: value.strip() for key, _, value in pairs}:
            yield facts


def _video_memory(facts: dict[str, str]) -> int:
    """Return the bytes in regions of video memory."""
    regions: dict[str, int] = {}
    # `drm-memory-` is the older name of `drm-resident-`, which sorts after it and counts where both are reported.
    for key in sorted(facts):
        found = REGION.fullmatch(key)
        number, _, unit = facts[key].partition(" ")
        if found and number.isdigit() and unit in UNITS:
            regions[found[2]] = int(number) * UNITS[unit]
    return sum(regions.values())
